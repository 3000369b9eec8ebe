/**
 * TLS certificates of the proxy. If the operator provides a wildcard certificate, it is used and read again when its
 * files change. Otherwise a local authority, created once and kept in a folder, issues them.
 *
 * The default certificate is for the domain, all names below it, and the addresses at which clients have connected. Clients
 * that send no server name get it. With a domain such as `sandboxes.example.com` all others get it too.
 *
 * Directly below a top-level name, `*.localhost` in particular, OpenSSL, Node and browsers reject a wildcard, so there each
 * host name gets a certificate when it is first requested. A client can make up names without end. So the number of
 * signatures per minute is limited: for each target, and for all names that lead nowhere together. Beyond that
 * clients get the default certificate.
 */
import { createPrivateKey, createPublicKey } from 'node:crypto'
import { mkdir, readFile, stat, writeFile } from 'node:fs/promises'
import { isIP } from 'node:net'
import path from 'node:path'
import { createSecureContext, type SecureContext } from 'node:tls'
import type { Log } from '../log.ts'
import { RateLimiter } from '../rate-limit.ts'
import { type Authority, issueAuthority, issueServer, newKeys } from './issue-certificate.ts'

export type Certificates = {
  /** `owner` counts signatures: what the name leads to, or undefined if it leads nowhere. */
  contextFor(name: string, owner: string | undefined): SecureContext
  /** False if `contextFor` needs the owner of this name. */
  has(name: string): boolean
  /** For clients that send no server name. `address` is the one they connected to. The same object until it changes. */
  defaultFor(address: string): KeyAndCertificate
  close(): void
}
export type KeyAndCertificate = { key: string | Buffer; cert: string | Buffer }

const CHECK_EVERY_MS = 2_000
const AUTHORITY_DAYS = 3_650
const SERVER_DAYS = 90
/** Certificates are replaced long before they expire, also in a process that runs for months. */
const RENEW_AFTER_MS = 30 * 86_400_000
const CACHED_MAX = 1_000
/** More than the names that anyone opens in a minute, for one owner, and the mistyped names of all clients together. */
export const SIGNATURES_PER_MINUTE = 120
/** Addresses of this machine, so there are few. */
const ADDRESSES_MAX = 100
export const AUTHORITY_FILE = 'ca.pem'
const KEY_FILE = 'ca.key'

/** If a changed certificate cannot be read, that is logged and the previous one stays in use. */
export async function openProvidedCertificate(
  certFile: string,
  keyFile: string,
  log: Pick<Log, 'warn' | 'info'>,
): Promise<Certificates> {
  const read = async (): Promise<KeyAndCertificate> => ({
    cert: await readFile(certFile),
    key: await readFile(keyFile),
  })
  const readVersion = async () => {
    const files = await Promise.all([stat(certFile), stat(keyFile)])
    return files.map((file) => `${file.mtimeMs} ${file.ino} ${file.size}`).join()
  }
  let version = await readVersion()
  let current = await read()
  let context = createSecureContext(current)
  const check = async () => {
    try {
      const found = await readVersion()
      if (found === version) return
      const changed = await read()
      context = createSecureContext(changed)
      current = changed
      version = found
      log.info({ file: certFile }, 'loaded the new certificate')
    } catch (error) {
      log.warn({ err: error, file: certFile }, 'failed to read the certificate, the previous one stays in use')
    }
  }
  const timer = setInterval(() => void check(), CHECK_EVERY_MS).unref()
  return {
    contextFor: () => context,
    has: () => true,
    defaultFor: () => current,
    close: () => clearInterval(timer),
  }
}

export async function openLocalAuthority(folder: string, domain: string): Promise<Certificates> {
  return new LocalCertificates(await readOrCreateAuthority(folder, domain), domain)
}

type Issued = KeyAndCertificate & { context: SecureContext; renewAtMs: number }

class LocalCertificates implements Certificates {
  readonly #authority: Authority
  readonly #domain: string
  readonly #keys = newKeys()
  readonly #limiter = new RateLimiter(SIGNATURES_PER_MINUTE)
  /** By host name, the oldest first. */
  readonly #issued = new Map<string, Issued>()
  readonly #addresses = new Set<string>()
  #default: Issued

  constructor(authority: Authority, domain: string) {
    this.#authority = authority
    this.#domain = domain
    this.#default = this.#issueDefault()
  }

  has(name: string): boolean {
    return this.#usesDefault(name) || this.#find(name) !== undefined
  }

  contextFor(name: string, owner: string | undefined): SecureContext {
    if (this.#usesDefault(name)) return this.#getDefault().context
    const found = this.#find(name)
    if (found) return found.context
    if (this.#limiter.take(owner ?? 'no owner', Date.now()) !== undefined) return this.#getDefault().context
    this.#issued.delete(name)
    if (this.#issued.size >= CACHED_MAX) this.#issued.delete(this.#issued.keys().next().value!) // The map is not empty.
    const issued = this.#issue([name], [])
    this.#issued.set(name, issued)
    return issued.context
  }

  defaultFor(address: string): KeyAndCertificate {
    if (isIP(address) !== 0 && !this.#addresses.has(address) && this.#addresses.size < ADDRESSES_MAX) {
      this.#addresses.add(address)
      this.#default = this.#issueDefault()
    }
    return this.#getDefault()
  }

  close(): void {}

  /** Where clients accept a wildcard, no name needs a separate certificate. */
  #usesDefault(name: string): boolean {
    return name === this.#domain || this.#domain.includes('.')
  }

  #find(name: string): Issued | undefined {
    const issued = this.#issued.get(name)
    return issued !== undefined && Date.now() < issued.renewAtMs ? issued : undefined
  }

  #getDefault(): Issued {
    if (Date.now() >= this.#default.renewAtMs) this.#default = this.#issueDefault()
    return this.#default
  }

  #issueDefault(): Issued {
    return this.#issue([this.#domain, `*.${this.#domain}`], [...this.#addresses])
  }

  #issue(names: readonly string[], addresses: readonly string[]): Issued {
    const { privateKey, publicKey } = this.#keys
    const pair = {
      key: privateKey.export({ type: 'pkcs8', format: 'pem' }),
      cert: issueServer(this.#authority, publicKey, names, SERVER_DAYS, addresses),
    }
    return { ...pair, context: createSecureContext(pair), renewAtMs: Date.now() + RENEW_AFTER_MS }
  }
}

/**
 * Without a folder, the authority exists only as long as this process. An authority can issue certificates for its own
 * domain only, so a changed domain gets a new one.
 */
async function readOrCreateAuthority(folder: string, domain: string): Promise<Authority> {
  const name = `Warren local authority for ${domain}`
  const newKeyPem = () => newKeys().privateKey.export({ type: 'pkcs8', format: 'pem' }) as string
  if (folder === '') return toAuthority(name, newKeyPem())
  await mkdir(folder, { recursive: true, mode: 0o700 })
  const keyFile = path.join(folder, KEY_FILE)
  const existingKey = await readFile(keyFile, 'utf8').catch(() => undefined)
  const existingCert = await readFile(path.join(folder, AUTHORITY_FILE), 'utf8').catch(() => '')
  if (existingKey !== undefined && existingCert.startsWith(`# ${name}\n`)) return toAuthority(name, existingKey)

  const keyPem = newKeyPem()
  const authority = toAuthority(name, keyPem)
  await writeFile(keyFile, keyPem, { mode: 0o600 })
  const cert = issueAuthority(authority, domain, AUTHORITY_DAYS)
  await writeFile(path.join(folder, AUTHORITY_FILE), `# ${name}\n${cert}`, { mode: 0o600 })
  return authority
}

function toAuthority(name: string, keyPem: string): Authority {
  const key = createPrivateKey(keyPem)
  return { name, key, publicKey: createPublicKey(key) }
}

/**
 * TLS certificates of the ingress. If the operator provides a wildcard certificate, it is used and read again when its
 * files change. Otherwise a local authority, created once and kept in a folder, issues a certificate for each host name:
 * most clients reject a wildcard directly below a top-level name, such as `*.localhost`.
 */
import { createPrivateKey, createPublicKey } from 'node:crypto'
import { mkdir, readFile, stat, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { createSecureContext, type SecureContext } from 'node:tls'
import type { Log } from '@warren/kit/log'
import { type Authority, issueAuthority, issueServer, newKeys } from './issue-certificate.ts'

export type Certificates = { contextFor(name: string): SecureContext; close(): void }

const CHECK_EVERY_MS = 2_000
const AUTHORITY_DAYS = 3_650
const SERVER_DAYS = 90
const CACHED_MAX = 1_000
export const AUTHORITY_FILE = 'ca.pem'
const KEY_FILE = 'ca.key'

/** If a changed certificate cannot be read, that is logged and the previous one stays in use. */
export async function openProvidedCertificate(
  certFile: string,
  keyFile: string,
  log: Pick<Log, 'warn' | 'info'>,
): Promise<Certificates> {
  const readContext = async () => createSecureContext({ cert: await readFile(certFile), key: await readFile(keyFile) })
  const readVersion = async () => {
    const files = await Promise.all([stat(certFile), stat(keyFile)])
    return files.map((file) => `${file.mtimeMs} ${file.ino} ${file.size}`).join()
  }
  let version = await readVersion()
  let context = await readContext()
  const check = async () => {
    try {
      const current = await readVersion()
      if (current === version) return
      context = await readContext()
      version = current
      log.info({ file: certFile }, 'loaded the new ingress certificate')
    } catch (error) {
      log.warn({ err: error, file: certFile }, 'failed to read the ingress certificate, the previous one stays in use')
    }
  }
  const timer = setInterval(() => void check(), CHECK_EVERY_MS).unref()
  return { contextFor: () => context, close: () => clearInterval(timer) }
}

export async function openLocalAuthority(folder: string, domain: string): Promise<Certificates> {
  const authority = await readOrCreateAuthority(folder, domain)
  const { privateKey, publicKey } = newKeys()
  const key = privateKey.export({ type: 'pkcs8', format: 'pem' }) as string
  const cached = new Map<string, SecureContext>()
  return {
    contextFor(name) {
      const known = cached.get(name)
      if (known) return known
      if (cached.size >= CACHED_MAX) cached.delete(cached.keys().next().value!) // The oldest; the map is not empty.
      const context = createSecureContext({ key, cert: issueServer(authority, publicKey, name, SERVER_DAYS) })
      cached.set(name, context)
      return context
    },
    close() {},
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

/**
 * What the ingress shows for TLS: the operator's wildcard certificate, read again when its files change; or, without
 * one, a certificate for each name it is asked for, by a local authority that is made once and kept in a folder. (For
 * each name: a wildcard right below a top-level name such as `*.localhost` is refused by most clients.)
 */
import { createPrivateKey, createPublicKey } from 'node:crypto'
import { mkdir, readFile, stat, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { createSecureContext, type SecureContext } from 'node:tls'
import type { Log } from '@warren/kit/log'
import { type Authority, issueAuthority, issueServer, newKeys } from './issue-certificate.ts'

export type Certificates = { contextFor(name: string): SecureContext; close(): void }

const LOOK_MS = 2_000
const AUTHORITY_DAYS = 3_650
const SERVER_DAYS = 90
const KEPT_MAX = 1_000
export const AUTHORITY_FILE = 'ca.pem'
const KEY_FILE = 'ca.key'

/** A new one that cannot be used is logged, and the one before stays. */
export async function openProvidedCertificate(
  certFile: string,
  keyFile: string,
  log: Pick<Log, 'warn' | 'info'>,
): Promise<Certificates> {
  const read = async () => createSecureContext({ cert: await readFile(certFile), key: await readFile(keyFile) })
  const stamp = async () => {
    const files = await Promise.all([stat(certFile), stat(keyFile)])
    return files.map((file) => `${file.mtimeMs} ${file.ino} ${file.size}`).join()
  }
  let seen = await stamp()
  let context = await read()
  const look = async () => {
    try {
      const now = await stamp()
      if (now === seen) return
      context = await read()
      seen = now
      log.info({ file: certFile }, 'read the new certificate of the ingress')
    } catch (error) {
      log.warn({ err: error, file: certFile }, 'the certificate of the ingress cannot be read, the last one stays')
    }
  }
  const timer = setInterval(() => void look(), LOOK_MS).unref()
  return { contextFor: () => context, close: () => clearInterval(timer) }
}

export async function openLocalAuthority(folder: string, domain: string): Promise<Certificates> {
  const authority = await readAuthority(folder, domain)
  const { privateKey, publicKey } = newKeys()
  const key = privateKey.export({ type: 'pkcs8', format: 'pem' }) as string
  const kept = new Map<string, SecureContext>()
  return {
    contextFor(name) {
      const known = kept.get(name)
      if (known) return known
      if (kept.size >= KEPT_MAX) kept.delete(kept.keys().next().value!) // The oldest; there is one.
      const context = createSecureContext({ key, cert: issueServer(authority, publicKey, name, SERVER_DAYS) })
      kept.set(name, context)
      return context
    },
    close() {},
  }
}

/**
 * Without a folder it lives as long as this process. Made for one domain: another domain needs another, since an
 * authority vouches for its own only.
 */
async function readAuthority(folder: string, domain: string): Promise<Authority> {
  const name = `Warren local authority for ${domain}`
  const newPem = () => newKeys().privateKey.export({ type: 'pkcs8', format: 'pem' }) as string
  if (folder === '') return authorityOf(name, newPem())
  await mkdir(folder, { recursive: true, mode: 0o700 })
  const file = path.join(folder, KEY_FILE)
  const found = await readFile(file, 'utf8').catch(() => undefined)
  const cert = await readFile(path.join(folder, AUTHORITY_FILE), 'utf8').catch(() => '')
  if (found !== undefined && cert.startsWith(`# ${name}\n`)) return authorityOf(name, found)

  const pem = newPem()
  const authority = authorityOf(name, pem)
  await writeFile(file, pem, { mode: 0o600 })
  const made = issueAuthority(authority, domain, AUTHORITY_DAYS)
  await writeFile(path.join(folder, AUTHORITY_FILE), `# ${name}\n${made}`, { mode: 0o600 })
  return authority
}

function authorityOf(name: string, pem: string): Authority {
  const key = createPrivateKey(pem)
  return { name, key, publicKey: createPublicKey(key) }
}

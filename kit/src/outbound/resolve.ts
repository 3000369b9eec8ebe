/**
 * Resolves host names that users have chosen: from /etc/hosts, otherwise by DNS.
 *
 * Not with the system's `getaddrinfo`, which occupies one of the four threads of this process until the name server answers.
 * Four names of a server that never answers would hold up every other lookup and all access to files. These queries occupy no thread and have a time limit.
 */
import { Resolver } from 'node:dns/promises'
import { readFile } from 'node:fs/promises'
import { isIP } from 'node:net'

export type ResolvedAddress = { address: string; family: number }
export type Resolve = (host: string, done: (error: Error | null, addresses: ResolvedAddress[]) => void) => void

type Options = {
  hostsFile?: string
  /** Instead of the file. */
  readHosts?: () => Promise<string>
  /** Those of the system by default. */
  servers?: string[] | (() => string[])
  timeoutMs?: number
}

/** The second attempt takes twice as long: together less than the delivery of a webhook may take. */
const TIMEOUT_MS = 2_000
const TRIES = 2
const LOOPBACK = ['127.0.0.1', '::1']

export function createResolve(options: Options = {}): Resolve {
  const { hostsFile = '/etc/hosts', servers, timeoutMs = TIMEOUT_MS } = options
  const readHosts = options.readHosts ?? (() => readFile(hostsFile, 'utf8').catch(() => ''))

  async function find(host: string): Promise<string[]> {
    const name = host.toLowerCase().replace(/\.$/, '')
    const listed = findInHosts(await readHosts(), name)
    if (listed.length > 0) return listed
    // RFC 6761 §6.3: these names never reach DNS.
    if (name === 'localhost' || name.endsWith('.localhost')) return LOOPBACK
    // A new one each time, because it reads the system's list of servers only when it is created.
    const resolver = new Resolver({ timeout: timeoutMs, tries: TRIES })
    if (servers) resolver.setServers(typeof servers === 'function' ? servers() : servers)
    const [v4, v6] = await Promise.allSettled([resolver.resolve4(name), resolver.resolve6(name)])
    const found = [v4, v6].flatMap((result) => (result.status === 'fulfilled' ? result.value : []))
    if (found.length > 0) return found
    throw toLookupError(v4.status === 'rejected' ? v4.reason : undefined)
  }

  return (host, done) => {
    find(host).then(
      (addresses) =>
        done(
          null,
          addresses.map((address) => ({ address, family: isIP(address) })),
        ),
      (error) => done(error, []),
    )
  }
}

export function findInHosts(text: string, name: string): string[] {
  return text.split('\n').flatMap((line) => {
    const [address = '', ...names] = line.replace(/#.*/, '').trim().split(/\s+/)
    return isIP(address) !== 0 && names.some((one) => one.toLowerCase() === name) ? [address] : []
  })
}

/** With the codes of the system's lookup: a name that does not exist, or name servers that give no answer. */
function toLookupError(cause: (Error & { code?: string }) | undefined): Error {
  const isAbsent = ['ENOTFOUND', 'ENODATA', 'EBADNAME'].includes(cause?.code ?? '')
  return Object.assign(new Error('failed to resolve a host name', { cause }), {
    code: isAbsent ? 'ENOTFOUND' : 'EAI_AGAIN',
  })
}

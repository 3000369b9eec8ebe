/**
 * Starts the S3 proxy: in a jail (kit/src/confine) as its own user, without privileges, with a root directory that has the
 * programs of the machine and our code, read-only, and nothing else, not even /proc. It has the network of the machine, in which
 * a table for its user limits what it reaches (net/netd/nft/s3-proxy-chain.ts).
 *
 * Its socket to this process is the descriptor after stderr, which is a pipe. It gets nothing of the terminal, and of the environment
 * only where certificate authorities are that the operator trusts.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { checkReadable, listCode } from '@warren/kit/confine/code'
import { type Confinement, confine } from '@warren/kit/confine/confine'
import type { S3ProxySettings } from './s3-proxy-protocol.ts'

/** Of the host agent and of what it imports. */
const WORKSPACES = ['host-agent', 'kit', 'protocol']

/** Node has about a dozen threads. A program that starts others in its place must not use up those of the machine. */
const PROCESSES_MAX = 256

const PROGRAM = join(import.meta.dirname, 's3-proxy/main.ts')
/** Read by Node: authorities of stores that have certificates of the operator. */
const AUTHORITIES = ['NODE_EXTRA_CA_CERTS', 'SSL_CERT_FILE']

/** Throws if the user of the S3 proxy cannot read the code, and says what to do. */
export const checkS3ProxyCode = (): void => checkReadable(WORKSPACES)

export const s3ProxyConfinement = (uid: number): Confinement => ({
  user: { service: 'signing-proxy', uid, gid: uid, groups: [] },
  read: [...listCode(WORKSPACES), ...listAuthorities().map(([, file]) => file)],
  write: [],
  network: true,
  ipOnly: true,
  proc: false,
  processesMax: PROCESSES_MAX,
  deathSignal: 'KILL',
})

/** `uid` is undefined where the host agent is not root, as in some tests: then there is no jail. */
export function startS3Proxy(uid: number | undefined, settings: S3ProxySettings): ChildProcess {
  const args = [PROGRAM, JSON.stringify(settings)]
  const confinement = uid === undefined ? undefined : s3ProxyConfinement(uid)
  const [command, jailArgs] = confine(confinement, process.execPath, args)
  return spawn(command, jailArgs, {
    detached: true, // Signals from the terminal do not reach it.
    env: Object.fromEntries(listAuthorities()),
    stdio: ['ignore', 'ignore', 'pipe', 'pipe'],
  })
}

const listAuthorities = (): [string, string][] =>
  AUTHORITIES.flatMap((name): [string, string][] => {
    const file = process.env[name]
    return file !== undefined && existsSync(file) ? [[name, file]] : []
  })

/**
 * Starts the egress proxy: in a jail (kit/src/confine) as its own user, without privileges, with a root directory that has the
 * programs of the machine and our code, read-only, and nothing else, not even /proc. It has the network of the machine, in which
 * a table for its user limits what it reaches (netd/nft/proxy-table.ts).
 *
 * Its socket to this process (kit/src/json-lines.ts) is the descriptor after stderr, which is a pipe. It gets nothing of the
 * terminal, and of the environment only the address of the host.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { join } from 'node:path'
import { checkReadable, listCode } from '@warren/kit/confine/code'
import { type Confinement, confine } from '@warren/kit/confine/confine'
import { GUEST_HOST } from '@warren/kit/shared-settings'
import type { EgressProxySettings } from './egress-proxy-protocol.ts'
import { HOST_ADDRESS } from './names.ts'

/** Of the host agent and of what it imports. */
const WORKSPACES = ['host-agent', 'kit', 'protocol']

/** Node has about a dozen threads. A program that starts others in its place must not use up those of the machine. */
const PROCESSES_MAX = 256

/** Throws if the user of the egress proxy cannot read the code, and says what to do. */
export const checkProxyCode = (): void => checkReadable(WORKSPACES)

export const proxyConfinement = (uid: number): Confinement => ({
  user: { service: 'egress-proxy', uid, gid: uid, groups: [] },
  read: listCode(WORKSPACES),
  write: [],
  network: true,
  ipOnly: true,
  proc: false,
  processesMax: PROCESSES_MAX,
  deathSignal: 'KILL',
})

const PROGRAM = join(import.meta.dirname, 'egress-proxy/main.ts')

export function startProxy(uid: number, settings: EgressProxySettings): ChildProcess {
  const args = [PROGRAM, JSON.stringify(settings)]
  const [command, jailArgs] = confine(proxyConfinement(uid), process.execPath, args)
  return spawn(command, jailArgs, {
    detached: true, // Signals from the terminal do not reach it.
    env: { [GUEST_HOST.name]: HOST_ADDRESS },
    stdio: ['ignore', 'ignore', 'pipe', 'pipe'],
  })
}

/**
 * The guest agent as a process of this machine without Warren around it, on sockets: the baseline of what Warren adds.
 * Like that of a native sandbox it has namespaces for mounts, processes and network, and its files are in memory.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { type GuestChannel, openGuestChannel } from '../../../host-agent/src/guest/channel.ts'
import { ROOT } from '../child.ts'

const AGENT = path.join(ROOT, 'guest-agent/target/warren/guest-agent')
const START_LIMIT_MS = 10_000
/** The shell stays, because the agent would set up the machine if it were the first process. */
const SCRIPT = 'mount -t tmpfs tmpfs /var/tmp && ip link set lo up && "$0" --listen-unix "$1"; exit $?'
const NAMESPACES = ['--mount', '--pid', '--net', '--fork', '--kill-child', '--mount-proc']

export type BareAgent = { channel: GuestChannel; stop(): Promise<void> }

export async function startBareAgent(): Promise<BareAgent> {
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-bench-'))
  const agent = path.join(folder, 'agent.sock')
  const child = spawn('unshare', [...NAMESPACES, 'sh', '-c', SCRIPT, AGENT, agent], {
    stdio: ['ignore', 'ignore', 'inherit'],
  })
  const stop = async () => {
    const exited = child.exitCode ?? child.signalCode ?? once(child, 'exit')
    child.kill('SIGKILL') // The kernel ends the others with the namespace.
    await exited
    await rm(folder, { recursive: true })
  }
  try {
    const sockets = { agent, hello: `${agent}.hello` }
    const channel = await openGuestChannel(sockets, AbortSignal.timeout(START_LIMIT_MS))
    return {
      channel,
      stop() {
        channel.close()
        return stop()
      },
    }
  } catch (error) {
    await stop()
    throw error
  }
}

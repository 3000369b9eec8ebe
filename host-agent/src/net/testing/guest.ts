/** A guest of the tests on a slot (guest-program.ts), and what can be tried from inside it. */
import { readFileSync } from 'node:fs'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { connect } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { until } from '@warren/kit/testing/until'
import { runCommandOrThrow } from '../../run-command.ts'
import type { VmmLauncher } from '../../vmm/launcher-client.ts'
import { UPLINK } from './host.ts'

/** What a guest tries. The outcome is a text: what it received, an error code, or `no answer`. */
export type Target =
  | { tcp: string; port: number; from?: string }
  | { udp: string; port: number; text: string; from?: string }
  | { name: string; server: string }
  | { nameOverTcp: string; server: string }
  /** A DNS query; the outcome is the response code and the addresses. */
  | { query: string; type: number; overTcp?: boolean; server?: string }
  /** Sends each part, in Latin-1, as its own segment; the outcome is everything that was received. */
  | { exchange: string; port: number; send: string[] }
  /** Sends this many bytes and closes the connection; the outcome is `sent all`. */
  | { bulk: string; port: number; bytes: number }

export type Guest = {
  pid: number
  probe: (...targets: Target[]) => Promise<string[]>
  /** Runs a command line in the guest's network namespace and returns its output. */
  run: (line: string) => Promise<string>
  /** Writes arbitrary frames to the slot's tap. */
  inject: (frames: readonly string[]) => Promise<void>
  /** Like `inject`, with a virtio header before each packet. */
  injectWithVirtioHeader: (packets: readonly string[]) => Promise<void>
  /** The frames received from the slot's tap, oldest first. */
  received: () => Promise<string[]>
  stop: () => Promise<void>
}

export async function startGuest(launcher: VmmLauncher, slot: number, address: string): Promise<Guest> {
  const folder = await mkdtemp(join(tmpdir(), 'warren-guest-'))
  const stdoutPath = join(folder, 'out')
  const stderrPath = join(folder, 'err')
  const controlSocket = join(folder, 'control')
  const { pid } = await launcher.request('spawn', {
    slot,
    command: process.execPath,
    args: [join(import.meta.dirname, 'guest-program.ts'), `${UPLINK.mtu}`, controlSocket, address],
    uid: 0,
    gid: 0,
    env: { PATH: process.env.PATH ?? '' },
    stdoutPath,
    stderrPath,
  })
  await until(async () => {
    const [out, errors] = await Promise.all([stdoutPath, stderrPath].map((path) => readFile(path, 'utf8')))
    if (errors !== '') throw new Error(`the guest of the tests failed: ${errors}`)
    return out === 'ready\n'
  })
  const enter = ['-t', `${pid}`, '-n']
  return {
    pid,
    async probe(...targets) {
      const args = [...enter, process.execPath, join(import.meta.dirname, 'probe-program.ts'), JSON.stringify(targets)]
      return JSON.parse((await runCommandOrThrow('nsenter', args)).stdout) as string[]
    },
    run: async (line) => (await runCommandOrThrow('nsenter', [...enter, ...line.split(' ')])).stdout,
    inject: async (frames) => void (await sendToGuest(controlSocket, { frames })),
    injectWithVirtioHeader: async (packets) => void (await sendToGuest(controlSocket, { packets })),
    received: () => sendToGuest(controlSocket, { received: true }),
    async stop() {
      process.kill(pid, 'SIGKILL')
      await until(() => !isAlive(pid))
      await rm(folder, { recursive: true })
    },
  }
}

async function sendToGuest(
  path: string,
  request: { frames?: readonly string[]; packets?: readonly string[]; received?: true },
): Promise<string[]> {
  const socket = connect(path)
  try {
    socket.write(`${JSON.stringify(request)}\n`)
    for await (const line of createInterface(socket)) return JSON.parse(line) as string[]
    throw new Error('the guest of the tests did not answer')
  } finally {
    socket.destroy()
  }
}

/** False for a zombie: a process that exited and that its parent has not waited for yet. */
export function isAlive(pid: number): boolean {
  try {
    return !/^\d+ \(.*\) Z/s.test(readFileSync(`/proc/${pid}/stat`, 'utf8'))
  } catch {
    return false
  }
}

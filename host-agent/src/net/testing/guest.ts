/** A guest of the tests on a claimed slot (guest.ts), and what can be tried from inside it. */
import { readFileSync } from 'node:fs'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { connect } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { until } from '@warren/kit/testing/until'
import { runCommandOrThrow } from '../../run-command.ts'
import type { Netd } from '../netd-client.ts'
import { UPLINK } from './host.ts'

export type Target =
  | { tcp: string; port: number; from?: string }
  | { udp: string; port: number; text: string; from?: string }
  | { name: string; server: string }
  | { nameOverTcp: string; server: string }
  /** The outcome is the code of the answer, and its addresses. */
  | { ask: string; type: number; overTcp?: boolean; server?: string }
  /** Bytes in Latin-1, each part on its own; the outcome is all that came back. */
  | { talk: string; port: number; send: string[] }
  /** So many bytes into a connection, and its end. */
  | { pour: string; port: number; bytes: number }

export type Guest = {
  pid: number
  probe: (...targets: Target[]) => Promise<string[]>
  inside: (line: string) => Promise<string>
  /** Puts frames on the cable, whatever they are. */
  inject: (frames: readonly string[]) => Promise<void>
  /** The same with a virtio header before each. */
  handOver: (pieces: readonly string[]) => Promise<void>
  /** Frames that came out of the cable, the newest last. */
  received: () => Promise<string[]>
  stop: () => Promise<void>
}

export async function startGuest(netd: Netd, slot: number): Promise<Guest> {
  const folder = await mkdtemp(join(tmpdir(), 'warren-guest-'))
  const stdoutPath = join(folder, 'out')
  const stderrPath = join(folder, 'err')
  const control = join(folder, 'control')
  const { pid } = await netd.request('spawnIn', {
    slot,
    command: process.execPath,
    args: [join(import.meta.dirname, 'guest-program.ts'), `${UPLINK.mtu}`, control],
    uid: 0,
    gid: 0,
    env: { PATH: process.env.PATH ?? '' },
    stdoutPath,
    stderrPath,
    cgroupProcs: [],
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
    inside: async (line) => (await runCommandOrThrow('nsenter', [...enter, ...line.split(' ')])).stdout,
    inject: async (frames) => void (await tell(control, { frames })),
    handOver: async (pieces) => void (await tell(control, { pieces })),
    received: () => tell(control, { seen: true }),
    async stop() {
      process.kill(pid, 'SIGKILL')
      await until(() => !isAlive(pid))
      await rm(folder, { recursive: true })
    },
  }
}

async function tell(
  path: string,
  words: { frames?: readonly string[]; pieces?: readonly string[]; seen?: true },
): Promise<string[]> {
  const socket = connect(path)
  try {
    socket.write(`${JSON.stringify(words)}\n`)
    for await (const line of createInterface(socket)) return JSON.parse(line) as string[]
    throw new Error('the guest of the tests did not answer')
  } finally {
    socket.destroy()
  }
}

/** A process that ended but whose parent has not looked yet counts as ended. */
export function isAlive(pid: number): boolean {
  try {
    return !/^\d+ \(.*\) Z/s.test(readFileSync(`/proc/${pid}/stat`, 'utf8'))
  } catch {
    return false // nobody has this number
  }
}

/** A guest of the tests on a claimed slot (guest.ts), and what can be tried from inside it. */
import { readFileSync } from 'node:fs'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { runOrThrow } from '../../run.ts'
import type { Netd } from '../netd-client.ts'
import { UPLINK } from './host.ts'

export type Target =
  | { tcp: string; port: number; from?: string }
  | { udp: string; port: number; text: string; from?: string }
  | { name: string; server: string }
  | { nameOverTcp: string; server: string }

export type Guest = {
  pid: number
  probe: (...targets: Target[]) => Promise<string[]>
  inside: (line: string) => Promise<string>
  stop: () => Promise<void>
}

export async function startGuest(netd: Netd, slot: number): Promise<Guest> {
  const folder = await mkdtemp(join(tmpdir(), 'warren-guest-'))
  const stdoutPath = join(folder, 'out')
  const stderrPath = join(folder, 'err')
  const { pid } = await netd.request('spawnIn', {
    slot,
    command: process.execPath,
    args: [join(import.meta.dirname, 'guest.ts'), `${UPLINK.mtu}`],
    uid: 0,
    gid: 0,
    env: { PATH: process.env.PATH ?? '' },
    stdoutPath,
    stderrPath,
    cgroupProcs: [],
  })
  await waitUntil(async () => {
    const [out, errors] = await Promise.all([stdoutPath, stderrPath].map((path) => readFile(path, 'utf8')))
    if (errors !== '') throw new Error(`the guest of the tests failed: ${errors}`)
    return out === 'ready\n'
  })
  const enter = ['-t', `${pid}`, '-n']
  return {
    pid,
    async probe(...targets) {
      const args = [...enter, process.execPath, join(import.meta.dirname, 'probe.ts'), JSON.stringify(targets)]
      return JSON.parse((await runOrThrow('nsenter', args)).stdout) as string[]
    },
    inside: async (line) => (await runOrThrow('nsenter', [...enter, ...line.split(' ')])).stdout,
    async stop() {
      process.kill(pid, 'SIGKILL')
      await waitUntil(() => !isAlive(pid))
      await rm(folder, { recursive: true })
    },
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

const WAIT_LIMIT_MS = 20_000

export async function waitUntil(condition: () => boolean | Promise<boolean>): Promise<void> {
  for (const deadline = Date.now() + WAIT_LIMIT_MS; !(await condition()); await sleep(10)) {
    if (Date.now() > deadline) throw new Error(`not within ${WAIT_LIMIT_MS} ms: ${condition}`)
  }
}

/**
 * However and whenever Warren is stopped in its first minutes, while it boots bases and fills its pools, nothing stays on
 * the machine. The moments are random; `WARREN_TEST_SEED` repeats those of an earlier run.
 */

import assert from 'node:assert/strict'
import { randomInt } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import { after, test } from 'node:test'
import { createRandom } from '@warren/kit/seeded-random'
import { passTime } from '@warren/kit/testing/pass-time'
import { scaleLimit } from '@warren/kit/testing/slowness'
import { until } from '@warren/kit/testing/until'
import { withTimeout } from '@warren/kit/timeout'
import {
  createDataDir,
  kill,
  launch,
  listProcesses,
  startInstance,
  stop,
  type WarrenProcess,
} from './support/instance.ts'
import { listLeftovers } from './support/leftovers.ts'
import { cannotRunVms, SOAK, VM_ENV, VM_READY_LIMIT_MS } from './support/vm-instance.ts'

const STOPS = 20
/** Most of the work of a start is done after 20 s. */
const LATEST_MS = SOAK ? 120_000 : 20_000
/** Promised to users (docs/operating.md), plus a second for the exit of this test's own child processes. */
const STOP_LIMIT_MS = 11_000

const SEED = Number(process.env.WARREN_TEST_SEED ?? randomInt(2 ** 31))
const random = createRandom(SEED)

type Way = { name: string; command?: (start: string[]) => string[]; stop: (launched: WarrenProcess) => Promise<void> }

const WAYS: Way[] = [
  {
    name: 'SIGTERM',
    async stop(launched) {
      kill(launched.pid, 'SIGTERM')
      await expectCleanExit(launched)
    },
  },
  {
    name: 'Ctrl-C',
    stop: (launched) => pressCtrlC(launched, 1),
  },
  {
    name: 'Ctrl-C, pressed three times',
    stop: (launched) => pressCtrlC(launched, 3),
  },
  {
    name: 'SIGKILL of the parent process',
    stop: async (launched) => kill(launched.pid, 'SIGKILL'),
  },
  {
    name: 'SIGKILL of the host agent, and SIGTERM soon after',
    async stop(launched) {
      const hostAgent = findHostAgent(launched.dataDir)
      if (hostAgent !== undefined) kill(hostAgent, 'SIGKILL')
      await passTime(random() * 1_500, 'the stop comes at a random moment of the restart')
      kill(launched.pid, 'SIGTERM')
      await expectCleanExit(launched)
    },
  },
  {
    name: 'a closed terminal',
    // `script` runs Warren on a terminal. When it dies, the kernel closes the terminal and sends SIGHUP.
    command: (start) => ['script', '--quiet', '--flush', '--command', start.join(' '), '/dev/null'],
    stop: async (launched) => kill(launched.pid, 'SIGKILL'),
  },
]

/** So that bases are booted in the background when a stop comes, however busy the machine is. */
const ENV = { ...VM_ENV, WARREN_PREPARE_SHAPES: 's-1vcpu-256mb, s-2vcpu-2gb', WARREN_PREPARE_AT_ONCE: 'true' }

/** On this one, bases exist from the earlier stops on, so that its stops come while pools are filled. */
const usedDataDir = cannotRunVms ? '' : await createDataDir({ after })

for (let i = 0; i < STOPS; i++) {
  const way = WAYS[i % WAYS.length]!
  // More often early than late.
  const afterMs = Math.round(LATEST_MS * random() ** 1.5)
  const isNew = Math.floor(i / WAYS.length) % 2 === 0
  const name = `${way.name} after ${afterMs} ms on a ${isNew ? 'new' : 'used'} data directory leaves nothing behind`
  test(`${name} (seed ${SEED})`, { skip: cannotRunVms }, async (t) => {
    const dataDir = isNew ? await createDataDir(t) : usedDataDir
    const command = way.command?.([process.execPath, 'cli/src/main.ts', 'start'])
    // A new one boots its bases, because it has no access to those that other data directories booted.
    const env = { ...ENV, ...(isNew && { WARREN_SHARED_BASES: 'none' }) }
    const launched = launch(dataDir, { env, ...(command && { command }) })
    await passTime(afterMs, 'the stop comes at a random moment of the start')

    await way.stop(launched)

    await until(() => listProcesses(dataDir).length === 0, 'every process has exited', STOP_LIMIT_MS)
    assert.deepEqual(listLeftovers(dataDir), [], launched.output())
  })
}

test('after everything was killed, the next start removes what was left, and its stop leaves nothing', {
  skip: cannotRunVms,
}, async () => {
  const killed = await startInstance(usedDataDir, { env: ENV, readyLimitMs: VM_READY_LIMIT_MS })
  await until(() => listLeftovers(usedDataDir).some(({ name }) => name.includes('qemu')), 'a pool is being filled')
  for (const pid of listProcesses(usedDataDir)) kill(pid, 'SIGKILL')
  await killed.exited
  const strays = listLeftovers(usedDataDir).filter(({ kind }) => kind === 'process')

  const instance = await startInstance(usedDataDir, { env: ENV, readyLimitMs: VM_READY_LIMIT_MS })
  const left = new Set(listLeftovers(usedDataDir).map(({ name }) => name))
  assert.equal(await stop(instance), 0)

  assert.deepEqual(
    strays.filter(({ name }) => left.has(name)),
    [],
  )
  assert.deepEqual(listLeftovers(usedDataDir), [], instance.output())
  assert.deepEqual(listProcesses(usedDataDir), [])
})

async function pressCtrlC(launched: WarrenProcess, times: number): Promise<void> {
  for (let i = 0; i < times; i++) {
    kill(-launched.pid, 'SIGINT') // The whole group, as a terminal does.
    await passTime(300, 'a person presses it again while Warren stops')
  }
  await expectCleanExit(launched)
}

async function expectCleanExit(launched: WarrenProcess): Promise<void> {
  const { code, signal } = await withTimeout(scaleLimit(STOP_LIMIT_MS), launched.exited, 'stopping')
  // A start that lost its host agent has failed. Before Node has installed its handlers, the signal ends the process.
  const expected = launched.output().includes('the host agent did not start') ? 1 : 0
  assert.ok(code === expected || signal !== null, `exit code ${code}: ${launched.output()}`)
}

function findHostAgent(dataDir: string): number | undefined {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .find((pid) => {
      try {
        const command = readFileSync(`/proc/${pid}/cmdline`, 'utf8')
        const environment = readFileSync(`/proc/${pid}/environ`, 'utf8')
        return command.includes('host-agent/src/main.ts') && environment.includes(dataDir)
      } catch {
        return false // It exited meanwhile.
      }
    })
}

/** A build that is deleted, or whose host agent is killed, at each of its stages leaves nothing but what it had cached. */
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, afterEach, suite, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { startHostAgent } from '../testing/host-agent.ts'
import { BuildClient, run } from './testing.ts'

const skip =
  process.getuid?.() !== 0
    ? 'virtual machines need root'
    : spawnSync('qemu-system-x86_64', ['--version']).status !== 0 && 'QEMU is not installed'

/** In the order of a build with one step. The step is cached if an attempt was killed here after those above. */
const POINTS = [
  ['host.build.step', false],
  ['host.build.stepSaved', false],
  ['host.build.stepCached', false],
  ['host.build.packed', true],
  ['host.build.published', true],
  ['host.build.booted', true],
] as const
/** The smallest shape. */
const BASE = { vcpu: 1, mem_mib: 256, disk_mib: 10_240 }
const basesAt = (point: string) => ({ bases: point === 'host.build.booted' ? [BASE] : [] })

const points = await mkdtemp(path.join(tmpdir(), 'warren-build-points-'))
after(() => rm(points, { recursive: true }))
const settings = { WARREN_POOL_MIB: '0', WARREN_CRASH_POINTS: points }
const client = skip ? (undefined as never) : new BuildClient(await startHostAgent(settings))

suite('a build', { skip }, () => {
  afterEach(() => client.deleteAll())

  for (const [point] of POINTS) {
    test(`that is deleted at ${point} leaves nothing but its cached steps`, async () => {
      const id = client.newId()
      await writeFile(path.join(points, point), 'hold')
      await client.start(id, client.body([run(`echo ${point}`)], basesAt(point)))
      await until(
        async () => {
          const { failure } = await client.get(id)
          assert.equal(failure, undefined, JSON.stringify(failure))
          return existsSync(path.join(points, `${point}.reached`))
        },
        `${point} is reached`,
        120_000,
      )

      const deleted = client.delete(id)
      await rm(path.join(points, point))
      await rm(path.join(points, `${point}.reached`))
      await deleted

      await client.checkNothingLeft(id)
    })
  }

  test('whose host agent is killed at every point in turn fails with a reason each time, and succeeds in the end', async () => {
    const id = client.newId()
    const body = client.body([run('echo killed')], { bases: [BASE] })

    for (const [index, [point, cached]] of POINTS.entries()) {
      await writeFile(path.join(points, point), 'kill')
      await client.start(id, { ...body, attempt: index + 1 }).catch(() => {}) // It may be killed before it responds.
      await until(() => existsSync(path.join(points, `${point}.reached`)), `${point} is reached`, 120_000)

      await client.startAgain()

      const { attempt, state, failure } = await client.get(id)
      assert.deepEqual(
        [attempt, state, failure],
        [index + 1, 'failed', { code: 'interrupted', reason: 'the host agent restarted' }],
      )
      const log = (await client.log(id)).split('ERROR: the host agent restarted\n')
      assert.deepEqual([log.length, log.at(-1)], [index + 2, ''], point)
      assert.equal(log.at(-2)!.includes('#1 CACHED'), cached, point)
      await client.checkNothingLeft(id)
    }
    const last = await client.build({ ...body, bases: [], attempt: POINTS.length + 1 }, id)

    assert.deepEqual([last.state, last.steps_cached, last.steps_run], ['done', 1, 0])
    assert.ok(await client.hasImage(id))
    await client.delete(id)
    await client.checkNothingLeft(id)
  })
})

/**
 * The control plane is killed with SIGKILL at every crash point of a build. Another process continues: the build ends as it
 * would have ended, every step of it ran once, and no resource is left.
 */
import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { templateImageName } from '@warren/protocol'
import { SWEEPS } from '../../jobs/registry.ts'
import { type Sweep, startSweeps } from '../../jobs/sweep.ts'
import { startApiProcess } from '../../testing/api-process.ts'
import { templateApi } from '../../testing/templates.ts'
import { createHostedApp } from '../../testing/with-host.ts'

const hosted = await createHostedApp({ startWorker: false })
const { deps, host, user, send, assertNothingLeft } = hosted
const { dockerfile, start } = templateApi(hosted)
const ada = await user({ plan: 'local' })
const crashPoints = await mkdtemp(path.join(tmpdir(), 'warren-crash-points-'))
after(() => rm(crashPoints, { recursive: true, force: true }))

/** The start of a process takes most of it. */
const KILL_LIMIT_MS = 120_000
const BUILD_SWEEPS: Sweep[] = SWEEPS.filter(({ name }) => /builds|watch-hosts/.test(name))

const rowOf = (id: string) => deps.db.selectFrom('templates').selectAll().where('id', '=', id).executeTakeFirstOrThrow()

/** Runs the sweeps in this process, as the one that stays alive, until `condition` holds. */
async function withSweeps(condition: () => Promise<boolean>): Promise<void> {
  const sweeps = startSweeps(deps, BUILD_SWEEPS)
  try {
    await until(condition)
  } finally {
    await sweeps.stop()
  }
}

async function killAt(point: string, during: () => Promise<void>): Promise<void> {
  await writeFile(path.join(crashPoints, point), 'kill')
  const api = await startApiProcess(hosted, { crashPoints })
  await during()
  await until(() => existsSync(path.join(crashPoints, `${point}.reached`)), `${point} is reached`, KILL_LIMIT_MS)
  await api.ended
}

for (const point of ['build.claimed', 'build.started', 'build.ended', 'build.recorded']) {
  test(`killed at ${point}: the template becomes ready, and its steps ran once`, async () => {
    const steps: string[] = []
    host.hooks = { beforeBuildStep: (id) => void steps.push(id) }
    let id = ''

    await killAt(point, async () => {
      id = await start(ada, dockerfile(`RUN echo ${point}`))
    })
    await withSweeps(async () => (await rowOf(id)).status === 'ready')

    const row = await rowOf(id)
    assert.deepEqual([row.attempt, row.reserved_mib, row.ip], [1, 0, null])
    assert.deepEqual(steps, [id])
    await assertNothingLeft()
  })
}

test('killed at build.deleted: the template is removed from its host', async () => {
  host.hooks = { beforeBuildStep: () => new Promise(() => {}) }
  const id = await start(ada, dockerfile('RUN echo deleted'))

  await killAt('build.deleted', async () => {
    await until(() => host.templateBuilds.builds.has(id))
    await send('DELETE', `/v1/templates/${id}`, ada)
  })
  await withSweeps(async () => (await rowOf(id)).host_id === null)

  assert.equal((await rowOf(id)).reserved_mib, 0)
  assert.ok(!host.images.some(({ name }) => name === templateImageName(id)))
  await assertNothingLeft()
})

test('killed at build.cancelled: what the failed build held is released', async () => {
  host.hooks = { beforeBuildStep: () => new Promise(() => {}) }
  const id = await start(ada, dockerfile('RUN echo cancelled'))

  await killAt('build.cancelled', async () => {
    await until(() => host.templateBuilds.builds.has(id))
    await deps.db
      .updateTable('templates')
      .set({ attempt_started_at: new Date(0) })
      .where('id', '=', id)
      .execute()
  })
  await withSweeps(async () => (await rowOf(id)).reserved_mib === 0)

  const row = await rowOf(id)
  assert.deepEqual([row.status, row.failure_reason], ['failed', 'the host did not finish the build in time'])
  assert.equal(host.templateBuilds.get(id).state, 'failed')
  await assertNothingLeft()
})

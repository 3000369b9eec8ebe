/**
 * The control plane is killed with SIGKILL at every crash point of attach, detach and rotate, and while it creates a sandbox
 * with disks. Another process continues: the host has what the database says, and the status that is shown is true.
 */
import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { SWEEPS } from '../jobs/registry.ts'
import { startSweeps } from '../jobs/sweep.ts'
import { startApiProcess } from '../testing/api-process.ts'
import { diskApi, STORE_CONFIG, startStore } from '../testing/disks.ts'
import { createHostedApp } from '../testing/with-host.ts'

const hosted = await createHostedApp({ startWorker: false, config: STORE_CONFIG })
const { deps, host, user, create } = hosted
const { register, attach, remove, list } = diskApi(hosted, await startStore())
const ada = await user({ plan: 'local' })
const crashPoints = await mkdtemp(path.join(tmpdir(), 'warren-crash-points-'))
after(() => rm(crashPoints, { recursive: true, force: true }))

/** The start of a process takes most of it. */
const KILL_LIMIT_MS = 120_000
const SURVIVOR_SWEEPS = SWEEPS.filter(({ name }) => /mounts|watch-hosts|orphaned-creates|dead-processes/.test(name))

type Request = [method: string, path: string, body?: object]

async function killAt(point: string, ...[method, url, body]: Request): Promise<void> {
  await writeFile(path.join(crashPoints, point), 'kill')
  const victim = await startApiProcess(hosted, { crashPoints })
  await assert.rejects(victim.send(method, url, ada, body))
  await until(() => existsSync(path.join(crashPoints, `${point}.reached`)), `${point} is reached`, KILL_LIMIT_MS)
  await victim.ended
}

/** Runs the sweeps in this process, as the one that stays alive, until `condition` holds. */
async function withSweeps(condition: () => Promise<boolean> | boolean, what: string): Promise<void> {
  const sweeps = startSweeps(deps, SURVIVOR_SWEEPS)
  try {
    await until(condition, what)
  } finally {
    await sweeps.stop()
  }
}

const wantedBy = (id: string) => host.vms.get(id)?.mounts.wanted ?? []
const statusesOf = async (id: string) => {
  const rows = await deps.db.selectFrom('disk_attachments').selectAll().where('sandbox_id', '=', id).execute()
  return rows.map(({ mount_path, status }) => `${mount_path} ${status}`).sort()
}

for (const point of ['disk-attach.committed', 'disk-attach.pushed']) {
  test(`killed at ${point}: the disk becomes mounted`, async () => {
    const disk = await register(ada)
    const { id } = (await create(ada)).body.data

    await killAt(point, 'POST', `/v1/sandboxes/${id}/disks`, { disk_id: disk.id, mount_path: '/mnt/data' })
    await withSweeps(async () => (await statusesOf(id)).join() === '/mnt/data mounted', 'the disk is mounted')

    assert.deepEqual(
      wantedBy(id).map(({ bucket }) => bucket),
      ['data'],
    )
    assert.equal((await attach(ada, id, disk.id)).status, 200)
    assert.equal((await list(ada, id)).length, 1)
  })
}

for (const point of ['disk-detach.committed', 'disk-detach.pushed']) {
  test(`killed at ${point}: the mount is removed, and the disk can be deleted`, async () => {
    const disk = await register(ada)
    const { id } = (await create(ada)).body.data
    await attach(ada, id, disk.id)

    await killAt(point, 'DELETE', `/v1/sandboxes/${id}/disks/${disk.id}?mount_path=/mnt/data`)
    await withSweeps(() => wantedBy(id).length === 0, 'the host has no mount')

    assert.deepEqual(await list(ada, id), [])
    assert.equal((await remove(ada, disk.id)).status, 200)
  })
}

for (const point of ['disk-rotate.committed', 'disk-rotate.pushed']) {
  test(`killed at ${point}: every mount gets the new credentials`, async () => {
    const disk = await register(ada)
    const ids: string[] = []
    for (let n = 0; n < 2; n++) ids.push((await create(ada)).body.data.id)
    for (const id of ids) await attach(ada, id, disk.id)
    const secrets = () => ids.flatMap((id) => wantedBy(id).map(({ credentials }) => credentials.secret_key))

    const credentials = { access_key: 'key', secret_key: `new at ${point}`.replaceAll(' ', '-') }
    await killAt(point, 'PATCH', `/v1/disks/${disk.id}`, { credentials })
    await withSweeps(() => secrets().every((secret) => secret === credentials.secret_key), 'both have them')

    await withSweeps(async () => (await statusesOf(ids[0]!)).join() === '/mnt/data mounted', 'the disk is mounted')
  })
}

test('killed while it creates a sandbox with disks: nothing is left, and the disk can be deleted', async () => {
  const disk = await register(ada)
  const victim = await startApiProcess(hosted)
  const began = Promise.withResolvers<string>()
  host.hooks.afterCreate = (body) => {
    began.resolve(body.id)
    return new Promise(() => {})
  }

  const asked = victim.create(ada, { disks: [{ disk_id: disk.id, mount_path: '/mnt/data' }] }).catch(() => 0)
  const id = await began.promise
  await victim.kill()
  await asked
  host.hooks = {}
  await withSweeps(async () => {
    const row = await deps.db.selectFrom('sandboxes').select('status').where('id', '=', id).executeTakeFirstOrThrow()
    return row.status === 'failed'
  }, 'the create is rolled back')

  assert.deepEqual([await statusesOf(id), host.vms.has(id)], [[], false])
  assert.equal((await remove(ada, disk.id)).status, 200)
})

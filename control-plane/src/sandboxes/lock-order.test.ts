import assert from 'node:assert/strict'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { sql } from 'kysely'
import { watchHosts } from '../hosts/heartbeat.ts'
import type { TestUser } from '../testing/app.ts'
import { createHostedApp } from '../testing/with-host.ts'

const { deps, host, user, create, send, assertNothingLeft } = await createHostedApp({
  config: { diskOvercommit: 1 },
  host: { cidr: '100.64.0.0/22' },
})
const ROOMY = { total_mib: 1_000_000, free_mib: 900_000, floor_mib: 1_000, sandboxes_mib: 0 }
const SECOND = 'second-host'

/** A host as large as the first, with the same agent. */
async function addSecondHost(): Promise<void> {
  await sql`insert into hosts (id, region, status, mem_mib, cidr, address, images, rootfses, accel, disks,
      disk_total_mib, disk_free_mib, disk_floor_mib, disk_sandboxes_mib, seen_at)
    select ${SECOND}, region, status, mem_mib, '100.65.0.0/22', address, images, rootfses, accel, disks,
      disk_total_mib, disk_free_mib, disk_floor_mib, disk_sandboxes_mib, now() + interval '1 hour'
    from hosts where id = ${host.id}`.execute(deps.db)
}

async function setVolume(volume: typeof ROOMY): Promise<void> {
  host.volume = volume
  await watchHosts.run(deps)
}

const waitForLocks = (count: number) =>
  until(async () => {
    const { rows } = await sql<{ n: number }>`select count(*) as n from pg_stat_activity
      where datname = current_database() and wait_event_type = 'Lock' and query like '%"hosts"%'`.execute(deps.db)
    return rows[0]!.n === count
  }, `${count} creates wait for a host`)

test('creates that try the same hosts in another order do not wait for each other forever', async () => {
  // Neither host has space to promise, so that each create tries both.
  await setVolume({ ...ROOMY, free_mib: 2_000 })
  await addSecondHost()
  const [ada, ben] = [await user(), await user()]
  await sql`update hosts set mem_mib = mem_mib - 1 where id = ${SECOND}`.execute(deps.db)
  const locked = Promise.withResolvers<void>()
  const { promise: released, resolve: release } = Promise.withResolvers<void>()
  const blocker = deps.db.transaction().execute(async (tx) => {
    await sql`select from hosts where id = ${host.id} for no key update`.execute(tx)
    locked.resolve()
    await released
  })
  await locked.promise

  const first = create(ada)
  await waitForLocks(1)
  await sql`update hosts set mem_mib = mem_mib + 2 where id = ${SECOND}`.execute(deps.db)
  const second = create(ben)
  await waitForLocks(2)
  release()
  await blocker

  for (const { status, body } of await Promise.all([first, second])) {
    assert.deepEqual([status, body.message.split(';')[0]], [503, 'no host has 10240 MiB of disk space left to promise'])
  }
  await sql`delete from hosts where id = ${SECOND}`.execute(deps.db)
})

test('creates, deletes, resizes and forks at the same time never deadlock', async () => {
  // Room for about half of them, so that many are refused after they have locked a host.
  await setVolume({ ...ROOMY, free_mib: 1_000 + 24 * 10_496 })
  const users = await Promise.all(Array.from({ length: 4 }, () => user({ plan: 'pro' })))
  const before = await countDeadlocks()

  const statuses = (
    await Promise.all(users.flatMap((who) => [liveThrough(who), liveThrough(who), liveThrough(who)]))
  ).flat()

  // 400 is a resize to the size that the disk has already, by another round.
  const counts = Object.entries(Object.groupBy(statuses, (status) => status)).map(([status, all]) => [
    status,
    all?.length,
  ])
  const expected = new Set([200, 202, 400, 409, 429, 503])
  assert.ok(
    statuses.every((status) => expected.has(status)),
    JSON.stringify(counts),
  )
  for (const status of [200, 202, 503]) assert.ok(statuses.includes(status), JSON.stringify(counts))
  await until(async () => {
    const rows = await deps.db.selectFrom('sandboxes').select('status').execute()
    return rows.every(({ status }) => status === 'destroyed' || status === 'failed')
  }, 'all sandboxes are destroyed')
  assert.equal(await countDeadlocks(), before)
  await assertNothingLeft()
})

/** Rounds of a sandbox that is resized and forked while all earlier ones of the user are deleted and another is created. */
async function liveThrough(who: TestUser): Promise<number[]> {
  const statuses: number[] = []
  for (let round = 0; round < 6; round++) {
    const earlier = await listOwn(who)
    const created = await create(who)
    statuses.push(created.status)
    const id = created.body.data?.id ?? earlier[0]
    const responses = await Promise.all([
      ...(id === undefined ? [] : [send('POST', `/v1/sandboxes/${id}/resize`, who, { disk_mib: 20_480 })]),
      ...(id === undefined ? [] : [send('POST', `/v1/sandboxes/${id}/fork`, who, { live: true })]),
      create(who),
      ...earlier.map((other) => send('DELETE', `/v1/sandboxes/${other}`, who)),
    ])
    statuses.push(...responses.map(({ status }) => status))
  }
  for (const id of await listOwn(who)) statuses.push((await send('DELETE', `/v1/sandboxes/${id}`, who)).status)
  return statuses
}

async function listOwn(who: TestUser): Promise<string[]> {
  const rows = await deps.db
    .selectFrom('sandboxes')
    .select('id')
    .where('user_id', '=', who.id)
    .where('status', 'not in', ['destroying', 'destroyed', 'failed'])
    .execute()
  return rows.map(({ id }) => id)
}

async function countDeadlocks(): Promise<number> {
  const { rows } = await sql<{ n: number }>`select deadlocks as n from pg_stat_database
    where datname = current_database()`.execute(deps.db)
  return rows[0]!.n
}

/** Two processes change the same disk and sandbox at the same time. Whatever the order, database and host agree in the end. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { buildApp } from '../app.ts'
import { createTestDeps, reconnect } from '../testing/app.ts'
import { diskApi, STORE_CONFIG, startStore } from '../testing/disks.ts'
import { createHostedApp, type HostedApp } from '../testing/with-host.ts'

const hosted = await createHostedApp({ host: { memMib: 10_000_000 }, config: STORE_CONFIG })
const { deps, host, user, create, send, get } = hosted
const store = await startStore()
const one = diskApi(hosted, store)
const ada = await user({ plan: 'local' })

/** Another process on the same database: its own connections and clients of hosts. */
const otherDeps = createTestDeps(reconnect(deps.database), { ...STORE_CONFIG, hostSocket: host.socket })
const otherApp = await buildApp(otherDeps)
const sendOther: HostedApp['send'] = async (method, url, who, body) => {
  const payload = body === undefined ? {} : { payload: body as object }
  const response = await otherApp.inject({ method, url, headers: who.headers, ...payload })
  return { status: response.statusCode, headers: response.headers, body: response.json() }
}
const two = diskApi({ send: sendOther, get }, store)

const ROUNDS = 12
const newSandbox = async (): Promise<string> => (await create(ada)).body.data.id
const attachmentsOf = (id: string) =>
  deps.db.selectFrom('disk_attachments').selectAll().where('sandbox_id', '=', id).execute()
/** The host has exactly the attachments of the database, with their revisions, and all are mounted. */
const agree = (id: string) =>
  until(async () => {
    const rows = (await attachmentsOf(id)).map((row) => `${row.id} ${row.revision} ${row.status}`).sort()
    const wanted = host.vms
      .get(id)!
      .mounts.wanted.map((mount) => `${mount.id} ${mount.revision} mounted`)
      .sort()
    return rows.join() === wanted.join()
  }, 'the host and the database agree')

test('attach and delete of a disk: either the disk is attached, or it is gone', async () => {
  const outcomes = new Set<string>()
  for (let round = 0; round < ROUNDS; round++) {
    const [disk, id] = [await one.register(ada), await newSandbox()]

    const [attached, deleted] = await Promise.all(
      round % 2 === 0
        ? [one.attach(ada, id, disk.id), two.remove(ada, disk.id)]
        : [two.attach(ada, id, disk.id), one.remove(ada, disk.id)],
    )

    const outcome = `${attached.status} ${deleted.status}`
    outcomes.add(outcome)
    assert.ok(['200 409', '404 200'].includes(outcome), outcome)
    assert.equal((await attachmentsOf(id)).length, attached.status === 200 ? 1 : 0)
    await agree(id)
  }
})

test('attach and rotate: no mount keeps the old credentials', async () => {
  for (let round = 0; round < ROUNDS; round++) {
    const [disk, id] = [await one.register(ada), await newSandbox()]

    const responses = await Promise.all([one.attach(ada, id, disk.id), two.rotate(ada, disk.id, `new-${round}`)])

    assert.deepEqual(
      responses.map(({ status }) => status),
      [200, 200],
    )
    await until(() => host.vms.get(id)!.mounts.wanted[0]?.credentials.secret_key === `new-${round}`, 'the new secret')
    await agree(id)
  }
})

test('two rotations, with a disk in several sandboxes: all have the one that is stored', async () => {
  const disk = await one.register(ada)
  const ids = await Promise.all(Array.from({ length: 4 }, newSandbox))
  for (const id of ids) await one.attach(ada, id, disk.id)

  for (let round = 0; round < ROUNDS; round++) {
    await Promise.all([one.rotate(ada, disk.id, `one-${round}`), two.rotate(ada, disk.id, `two-${round}`)])
  }

  for (const id of ids) await agree(id)
  const secrets = new Set(ids.map((id) => host.vms.get(id)!.mounts.wanted[0]!.credentials.secret_key))
  assert.equal(secrets.size, 1, [...secrets].join())
  assert.match([...secrets][0]!, new RegExp(`^(one|two)-${ROUNDS - 1}$`))
})

test('attach and detach of one path: it is attached once, or not at all', async () => {
  const [disk, id] = [await one.register(ada), await newSandbox()]
  for (let round = 0; round < ROUNDS; round++) {
    const responses = await Promise.all([
      one.attach(ada, id, disk.id),
      two.detach(ada, id, disk.id),
      two.attach(ada, id, disk.id),
      one.detach(ada, id, disk.id),
    ])

    for (const { status } of responses) assert.ok([200, 404].includes(status), String(status))
    assert.ok((await attachmentsOf(id)).length <= 1)
    await agree(id)
  }
})

test('two disks for one path: exactly one gets it', async () => {
  for (let round = 0; round < ROUNDS; round++) {
    const id = await newSandbox()
    const disks = [await one.register(ada), await one.register(ada)]

    const responses = await Promise.all([
      one.attach(ada, id, disks[0]!.id, '/mnt/data'),
      two.attach(ada, id, disks[1]!.id, '/mnt'),
    ])

    assert.deepEqual(responses.map(({ status }) => status).sort(), [200, 409])
    await agree(id)
  }
})

test('attach, detach and rotate while the sandbox is destroyed leave nothing', async () => {
  for (let round = 0; round < ROUNDS; round++) {
    const [disk, other, id] = [await one.register(ada), await one.register(ada), await newSandbox()]
    await one.attach(ada, id, other.id, '/mnt/other')

    const responses = await Promise.all([
      two.attach(ada, id, disk.id),
      one.rotate(ada, other.id, 'new'),
      two.detach(ada, id, other.id, '/mnt/other'),
      send('DELETE', `/v1/sandboxes/${id}`, ada),
    ])

    for (const { status, body } of responses) assert.ok([200, 404, 409].includes(status), JSON.stringify(body))
    assert.deepEqual(await attachmentsOf(id), [])
    for (const { id: gone } of [disk, other]) assert.equal((await two.remove(ada, gone)).status, 200)
  }
})

/** The process that destroys is killed with -9 between any two steps, and the host agent dies under it. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { sql } from 'kysely'
import { startApiProcess } from '../testing/api-process.ts'
import { createHostedApp } from '../testing/with-host.ts'

const hosted = await createHostedApp({ startWorker: false })
const { deps, host, user, create, send, get, assertNothingLeft } = hosted
const ada = await user()

test.beforeEach(() => {
  host.hooks = {}
})

const statusOf = async (id: string) => (await get(`/v1/sandboxes/${id}`, ada.key)).body.data.status
const ends = async (id: string) => {
  await until(async () => (await statusOf(id)) === 'destroyed', 'the sandbox is destroyed', 15_000)
  await assertNothingLeft()
}

test('killed while the host works on it, before and after the VM is gone: another process ends it', async () => {
  for (const hook of ['beforeDelete', 'afterDelete'] as const) {
    const { id } = (await create(ada)).body.data
    const doomed = await startApiProcess(hosted)
    let reached = false
    host.hooks = {
      [hook]: () => {
        reached = true
        return new Promise(() => {})
      },
    }
    await send('DELETE', `/v1/sandboxes/${id}`, ada)
    await until(() => reached)

    await doomed.kill()
    host.hooks = {}
    const heir = await startApiProcess(hosted)

    await ends(id)
    await heir.kill()
  }
})

test('killed before its last transaction commits: the memory is given back once', async () => {
  const { id } = (await create(ada)).body.data
  const doomed = await startApiProcess(hosted)
  const gate = Promise.withResolvers<void>()
  let reached = false
  host.hooks = {
    afterDelete: () => {
      reached = true
      return gate.promise
    },
  }
  await send('DELETE', `/v1/sandboxes/${id}`, ada)
  await until(() => reached)

  await deps.db.transaction().execute(async (tx) => {
    await sql`select from hosts for update`.execute(tx)
    gate.resolve()
    await until(async () => {
      const { rows } = await sql`select from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock'`.execute(deps.db)
      return rows.length > 0
    })
    await doomed.kill()
  })
  assert.equal(await statusOf(id), 'destroying')
  const heir = await startApiProcess(hosted)

  await ends(id)
  await heir.kill()
})

test('the host agent dies in the middle, and the job goes on when it is back', async () => {
  const api = await startApiProcess(hosted)
  for (const hook of ['beforeDelete', 'afterDelete'] as const) {
    const { id } = (await create(ada)).body.data
    let reached = false
    host.hooks = {
      [hook]: () => {
        reached = true
        return new Promise(() => {})
      },
    }
    await send('DELETE', `/v1/sandboxes/${id}`, ada)
    await until(() => reached)

    await host.stop()
    host.hooks = {}
    await host.start()

    await ends(id)
  }
  await api.kill()
})

/** The process that runs a destroy is killed with SIGKILL between any two steps, or the host agent dies. */
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

test('killed while the host deletes the VM, or just after: another process completes the destroy', async () => {
  for (const hook of ['beforeDelete', 'afterDelete'] as const) {
    const { id } = (await create(ada)).body.data
    const victim = await startApiProcess(hosted)
    let reached = false
    host.hooks = {
      [hook]: () => {
        reached = true
        return new Promise(() => {})
      },
    }
    await send('DELETE', `/v1/sandboxes/${id}`, ada)
    await until(() => reached)

    await victim.kill()
    host.hooks = {}
    const successor = await startApiProcess(hosted)

    await ends(id)
    await successor.kill()
  }
})

test('killed before the last transaction commits: the memory is released once', async () => {
  const { id } = (await create(ada)).body.data
  const victim = await startApiProcess(hosted)
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
    await victim.kill()
  })
  assert.equal(await statusOf(id), 'destroying')
  const successor = await startApiProcess(hosted)

  await ends(id)
  await successor.kill()
})

test('when the host agent dies during a destroy, the job completes once it is back', async () => {
  // Before the process starts: it would roll back a create of this one, which sends no heartbeats.
  const created = { beforeDelete: (await create(ada)).body.data.id, afterDelete: (await create(ada)).body.data.id }
  const api = await startApiProcess(hosted)
  for (const hook of ['beforeDelete', 'afterDelete'] as const) {
    const id = created[hook]
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

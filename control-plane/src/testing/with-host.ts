/** The whole control plane with a fake host behind it, its worker running, entered by the front door. */
import assert from 'node:assert/strict'
import { after } from 'node:test'
import { sql } from 'kysely'
import { watchHosts } from '../hosts/heartbeat.ts'
import { writeHeartbeat } from '../jobs/processes.ts'
import { JOBS, SWEEPS } from '../jobs/registry.ts'
import { startWorker } from '../jobs/worker.ts'
import { type Answer, createTestApp, type TestApp, type TestUser } from './app.ts'
import { type FakeHost, startFakeHost } from './fake-host.ts'

export type HostedApp = TestApp & {
  host: FakeHost
  send(
    method: 'GET' | 'POST' | 'PATCH' | 'PUT' | 'DELETE',
    path: string,
    who: TestUser,
    body?: unknown,
  ): Promise<Answer>
  create(who: TestUser, body?: object, headers?: Record<string, string>): Promise<Answer>
  /** Nothing is held that no living row holds, and no VM is there without one. */
  assertNothingLeft(): Promise<void>
}

export async function createHostedApp(
  options: Parameters<typeof createTestApp>[0] & {
    host?: Parameters<typeof startFakeHost>[0]
    /** False where a test runs jobs and sweeps elsewhere, or one at a time. */
    works?: boolean
  } = {},
): Promise<HostedApp> {
  const host = await startFakeHost(options.host)
  const app = await createTestApp({ ...options, config: { ...options.config, hostSocket: host.socket } })
  await watchHosts.run(app.deps)
  if (options.works === false) await writeHeartbeat(app.deps, [])
  else {
    const worker = await startWorker(app.deps, { jobs: JOBS, sweeps: SWEEPS })
    after(() => worker.stop())
  }

  const send: HostedApp['send'] = async (method, path, who, body) => {
    const payload = body === undefined ? {} : { payload: body as object }
    return answer(await app.app.inject({ method, url: path, headers: who.headers, ...payload }))
  }
  return {
    ...app,
    host,
    send,
    create: async (who, body = {}, headers = {}) =>
      answer(
        await app.app.inject({
          method: 'POST',
          url: '/v1/sandboxes',
          headers: { ...who.headers, ...headers },
          payload: { shape: 's-1vcpu-256mb', ...body },
        }),
      ),
    assertNothingLeft: () => assertNothingLeft(app, host),
  }
}

const answer = (response: Awaited<ReturnType<TestApp['app']['inject']>>): Answer => ({
  status: response.statusCode,
  headers: response.headers,
  body: response.headers['content-type']?.toString().includes('json') ? parse(response.payload) : response.payload,
})

function parse(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return text
  }
}

async function assertNothingLeft({ deps }: TestApp, host: FakeHost): Promise<void> {
  const living = await deps.db
    .selectFrom('sandboxes')
    .select(['id', 'mem_mib', 'status'])
    .where('status', 'not in', ['destroyed', 'failed'])
    .execute()
  // What is saved holds no memory.
  const holders = living.filter((one) => one.status !== 'paused' && one.status !== 'error')
  const row = await deps.db.selectFrom('hosts').selectAll().where('id', '=', host.id).executeTakeFirstOrThrow()
  const held = await sql<{ mib: number; open: number }>`select coalesce(sum(reserved_mib), 0) as mib,
    (select count(*) from usage_intervals where ended_at is null) as open from sandboxes`.execute(deps.db)
  assert.deepEqual(
    {
      vms: [...host.vms.keys()].sort(),
      reserved: row.reserved_mib,
      vmCount: row.vm_count,
      held: held.rows[0]!.mib,
      open: held.rows[0]!.open,
    },
    {
      vms: living.map((one) => one.id).sort(),
      reserved: holders.reduce((sum, one) => sum + one.mem_mib, 0),
      vmCount: holders.length,
      held: holders.reduce((sum, one) => sum + one.mem_mib, 0),
      open: living.length,
    },
  )
}

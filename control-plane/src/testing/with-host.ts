/** The whole control plane with a fake host and a running worker, used through its API. */
import assert from 'node:assert/strict'
import { after } from 'node:test'
import { sql } from 'kysely'
import { watchHosts } from '../hosts/heartbeat.ts'
import { writeHeartbeat } from '../jobs/processes.ts'
import { JOBS, SWEEPS } from '../jobs/registry.ts'
import { startWorker } from '../jobs/worker.ts'
import { reservedMib } from '../sandboxes/reservations.ts'
import { createTestApp, type TestApp, type TestResponse, type TestUser } from './app.ts'
import { type FakeHost, startFakeHost } from './fake-host.ts'

export type HostedApp = TestApp & {
  host: FakeHost
  send(
    method: 'GET' | 'POST' | 'PATCH' | 'PUT' | 'DELETE',
    path: string,
    who: TestUser,
    body?: unknown,
  ): Promise<TestResponse>
  create(who: TestUser, body?: object, headers?: Record<string, string>): Promise<TestResponse>
  /** Asserts that all reserved resources belong to live sandboxes, and that every VM has a row. */
  assertNothingLeft(): Promise<void>
}

export async function createHostedApp(
  options: Parameters<typeof createTestApp>[0] & {
    host?: Parameters<typeof startFakeHost>[0]
    /** False for tests that run jobs and sweeps elsewhere, or one at a time. */
    startWorker?: boolean
  } = {},
): Promise<HostedApp> {
  const host = await startFakeHost(options.host)
  const app = await createTestApp({ ...options, config: { ...options.config, hostSocket: host.socket } })
  await watchHosts.run(app.deps)
  if (options.startWorker === false) await writeHeartbeat(app.deps, [])
  else {
    const worker = await startWorker(app.deps, { jobs: JOBS, sweeps: SWEEPS })
    after(() => worker.stop())
  }

  const send: HostedApp['send'] = async (method, path, who, body) => {
    const payload = body === undefined ? {} : { payload: body as object }
    return toResponse(await app.app.inject({ method, url: path, headers: who.headers, ...payload }))
  }
  return {
    ...app,
    host,
    send,
    create: async (who, body = {}, headers = {}) =>
      toResponse(
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

const toResponse = (response: Awaited<ReturnType<TestApp['app']['inject']>>): TestResponse => ({
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
    .select(['id', 'vcpu', 'mem_mib', 'status'])
    .where('status', 'not in', ['destroyed', 'failed'])
    .execute()
  // A paused sandbox reserves no memory.
  const holders = living
    .filter((one) => one.status !== 'paused' && one.status !== 'error')
    .map((one) => ({ reserved_mib: reservedMib(host, one) }))
  const builds = await deps.db.selectFrom('templates').select('reserved_mib').where('reserved_mib', '>', 0).execute()
  const row = await deps.db.selectFrom('hosts').selectAll().where('id', '=', host.id).executeTakeFirstOrThrow()
  const reserved = await sql<{ mib: number; open: number }>`select coalesce(sum(reserved_mib), 0) as mib,
    (select count(*) from usage_intervals where ended_at is null) as open from sandboxes`.execute(deps.db)
  assert.deepEqual(
    {
      vms: [...host.vms.keys()].sort(),
      reserved: row.reserved_mib,
      vmCount: row.vm_count,
      held: reserved.rows[0]!.mib,
      open: reserved.rows[0]!.open,
    },
    {
      vms: living.map((one) => one.id).sort(),
      reserved: [...holders, ...builds].reduce((sum, one) => sum + one.reserved_mib, 0),
      vmCount: holders.length + builds.length,
      held: holders.reduce((sum, one) => sum + one.reserved_mib, 0),
      open: living.length,
    },
  )
}

import assert from 'node:assert/strict'
import { execFile, spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { test } from 'node:test'
import { promisify } from 'node:util'
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client'
import { until } from '@warren/kit/testing/until'
import { type AuditEntry, newId } from '@warren/protocol'
import { sql } from 'kysely'
import { createTestApp, listenOn, type TestUser } from '../testing/app.ts'
import { openUpgrade } from '../testing/upgrade-client.ts'
import { createHostedApp } from '../testing/with-host.ts'
import { AUDITED_ROUTES, TOOL_ACTIONS } from './actions.ts'
import { deleteOldAuditEntries } from './delete-old.ts'
import { createAuditLog } from './log.ts'

const AUDIT_PROCESS = new URL('../testing/audit-process.ts', import.meta.url).pathname
const hosted = await createHostedApp()
const { app, deps, user, create, send, get } = hosted
const { port, url } = await listenOn(app)
const ada = await user({ plan: 'local' })
const eve = await user({ plan: 'local' })

const EMPTY = {
  actor_kind: 'user',
  actor: 'x',
  credential: null,
  action: 'x',
  target: null,
  outcome: 'success',
  status: 200,
  code: null,
  request_id: null,
} as const

const list = async (who: TestUser, query = ''): Promise<AuditEntry[]> =>
  (await get(`/v1/audit${query}`, who.key)).body.data.data

/** Entries of calls inside a guest are written after their response. */
async function findEntry(who: TestUser, action: string, target?: string): Promise<AuditEntry> {
  let found: AuditEntry | undefined
  await until(async () => {
    found = (await list(who, `?action=${action}`)).find((entry) => target === undefined || entry.target === target)
    return found !== undefined
  }, `an entry ${action}`)
  return found!
}

test('every route and tool that changes something has a line, and every line a route', async () => {
  const changing = app.routeList.filter(({ method }) => method !== 'GET' && method !== 'HEAD')
  const missing = changing.map(({ method, url }) => `${method} ${url}`).filter((route) => !(route in AUDITED_ROUTES))
  const known = new Set(app.routeList.map(({ method, url }) => `${method} ${url}`))

  assert.deepEqual(missing, [])
  assert.deepEqual(
    Object.keys(AUDITED_ROUTES).filter((route) => !known.has(route)),
    [],
  )
})

test('a call that changes something is recorded before its response, with actor, credential, target and request', async () => {
  const response = await create(ada)
  const { id } = response.body.data

  const [entry] = await list(ada)

  assert.match(entry!.id, /^aud_[0-9A-Z]{26}$/)
  assert.ok(Math.abs(Date.parse(entry!.at) - Date.now()) < 60_000)
  const { id: _id, at: _at, ...rest } = entry!
  assert.deepEqual(rest, {
    actor_kind: 'user',
    actor: ada.id,
    credential: `${ada.key.slice(0, 8)}...${ada.key.slice(-4)}`,
    action: 'sandbox.create',
    target: id,
    outcome: 'success',
    status: 200,
    request_id: response.headers['x-request-id'],
  })
})

test('a refused and a failed call are recorded with their outcome and code', async () => {
  const { id } = (await create(ada)).body.data
  await send('POST', `/v1/sandboxes/${id}/resume`, ada)
  await send('PATCH', `/v1/sandboxes/${id}`, ada, { auto_pause_after_seconds: 1 })
  await send('DELETE', `/v1/sandboxes/${id}`, eve)
  hosted.host.hooks = {
    beforeCreate: () => {
      throw new Error('broken')
    },
  }
  await create(eve)
  hosted.host.hooks = {}

  const outcome = async (who: TestUser, action: string) => {
    const [{ outcome, status, code, target } = {} as AuditEntry] = await list(who, `?action=${action}`)
    return [outcome, status, code, target]
  }
  assert.deepEqual(await outcome(ada, 'sandbox.resume'), ['fail', 409, 'wrong_state', id])
  assert.deepEqual(await outcome(ada, 'sandbox.patch'), ['fail', 400, 'validation_failed', id])
  assert.deepEqual(await outcome(eve, 'sandbox.destroy'), ['fail', 404, 'not_found', id])
  const [kind, status] = await outcome(eve, 'sandbox.create')
  assert.ok(kind === 'error' && Number(status) >= 500, `${kind} ${status}`)
})

test('an entry shows only a hint of the access token that was used', async () => {
  const { id } = (await create(ada)).body.data
  const { token } = (await send('POST', `/v1/sandboxes/${id}/access-token`, ada)).body.data
  await app.inject({ method: 'POST', url: `/v1/sandboxes/${id}/pause`, headers: { 'x-api-key': token } })

  const entry = await findEntry(ada, 'sandbox.pause', id)
  const everything = JSON.stringify((await deps.db.selectFrom('audit_log').selectAll().execute()) as unknown)

  assert.equal(entry.actor_kind, 'token')
  assert.match(entry.credential!, /^skp_sb_.{4}\.\.\..{4}$/)
  assert.ok(!everything.includes(token) && !everything.includes(ada.key))
})

test('commands, files, processes, shells and tunnels in a guest are recorded, and input of a process is not', async () => {
  const { id } = (await create(ada)).body.data
  const path = `/v1/sandboxes/${id}`
  await send('POST', `${path}/exec`, ada, { cmd: 'sh', args: ['-c', 'echo very-private'] })
  await fetch(`${url}${path}/files?path=/srv/a`, { method: 'PUT', headers: ada.headers, body: 'very-private' })
  const { process_id } = (await send('POST', `${path}/processes`, ada, { cmd: 'cat' })).body.data
  await send('POST', `${path}/processes/${process_id}/input`, ada, { data_base64: 'AAAA' })
  await send('DELETE', `${path}/processes/${process_id}`, ada)
  const shell = openUpgrade(port, `POST ${path}/shell`, { 'X-Api-Key': ada.key })

  for (const action of ['sandbox.exec', 'sandbox.file.put', 'process.start', 'process.delete', 'sandbox.shell']) {
    assert.equal((await findEntry(ada, action, id)).outcome, 'success', action)
  }
  assert.equal((await findEntry(ada, 'sandbox.shell', id)).status, 101)
  const entries = await list(ada, `?target=${id}&limit=500`)
  assert.ok(!entries.some((entry) => entry.action.includes('input')))
  const stored = JSON.stringify(await deps.db.selectFrom('audit_log').selectAll().where('target', '=', id).execute())
  assert.ok(!stored.includes('very-private'))
  shell.socket.destroy()
})

test('reads, requests without a valid credential and rate-limited requests are not recorded', async () => {
  const limited = await createTestApp({ config: { rateLimitPerMinute: 1 }, database: deps.database })
  const who = await limited.user()
  const post = () => limited.app.inject({ method: 'POST', url: '/v1/networks', headers: who.headers, payload: {} })
  await post()
  await post()
  await get('/v1/sandboxes', who.key)
  await app.inject({
    method: 'POST',
    url: '/v1/networks',
    headers: { 'x-api-key': 'skp_wrong' },
    payload: { name: 'x' },
  })
  for (const { audit } of [limited.deps, deps]) await audit.written()

  const rows = await deps.db.selectFrom('audit_log').select('status').where('user_id', '=', who.id).execute()

  assert.deepEqual(
    rows.map((row) => row.status),
    [400],
  )
})

test('the log is paginated and filtered, and shows no entries of other users', async () => {
  const bob = await user({ plan: 'local' })
  for (let i = 0; i < 5; i++) await send('POST', '/v1/networks', bob, { name: `net-${i}` })
  const { id } = (await create(bob)).body.data

  const all = (await get('/v1/audit?limit=2&offset=1', bob.key)).body.data

  assert.deepEqual(all.pagination, { total: 6, limit: 2, offset: 1, count: 2 })
  assert.equal((await list(bob, `?target=${id}`)).length, 1)
  assert.equal((await list(bob, '?action=network.create')).length, 5)
  assert.deepEqual(await list(eve, `?target=${id}`), [])
})

test('MCP tools are recorded like the routes', async () => {
  const client = new Client({ name: 'test', version: '1' })
  const requestInit = { headers: { Authorization: `Bearer ${eve.key}` } }
  await client.connect(new StreamableHTTPClientTransport(new URL(`${url}/mcp`), { requestInit }))
  const changing = (await client.listTools()).tools.filter((tool) => !tool.annotations?.readOnlyHint)
  const result = (await client.callTool({ name: 'create_sandbox', arguments: {} })) as { content: { text: string }[] }
  const { id } = JSON.parse(result.content[0]!.text)
  await client.callTool({ name: 'resume_sandbox', arguments: { sandbox_id: id } })
  await client.close()

  assert.equal((await findEntry(eve, 'sandbox.create', id)).outcome, 'success')
  assert.equal((await findEntry(eve, 'sandbox.resume', id)).code, 'wrong_state')
  assert.deepEqual(
    changing.map((tool) => tool.name).filter((name) => !(name in TOOL_ACTIONS)),
    [],
  )
})

test('a target that cannot be stored as it is does not stop the log', async () => {
  const client = new Client({ name: 'test', version: '1' })
  const requestInit = { headers: { Authorization: `Bearer ${eve.key}` } }
  await client.connect(new StreamableHTTPClientTransport(new URL(`${url}/mcp`), { requestInit }))
  const random = randomBytes(20_000).toString('base64url')
  for (const sandbox_id of ['sb-\0', random, 'sb-\ud800']) {
    await client.callTool({ name: 'pause_sandbox', arguments: { sandbox_id } })
  }
  await client.close()

  await send('POST', '/v1/networks', ada, { name: 'after-eve' })

  assert.equal((await list(ada))[0]!.action, 'network.create')
  assert.deepEqual(
    (await list(eve, '?action=sandbox.pause')).map(({ target }) => target),
    ['sb-\ufffd', random.slice(0, 128), 'sb-'],
  )
})

test('an entry that the database refuses does not stop those that are written with it', async () => {
  const errors: unknown[] = []
  const log = createAuditLog(deps.database, { warn() {}, error: (...args: unknown[]) => void errors.push(args[1]) })
  const entry = (status: number) => ({
    ...EMPTY,
    id: newId('auditEntry'),
    at: new Date(),
    user_id: 'usr_poison',
    status,
  })

  await Promise.all([entry(200), { ...entry(201), actor: '\0' }, entry(202)].map(log.record))
  await log.written()
  await log.close()

  const { rows } = await sql<{ status: number }>`select status from audit_log where user_id = 'usr_poison'
    order by status`.execute(deps.db)
  assert.deepEqual(
    rows.map(({ status }) => status),
    [200, 202],
  )
  assert.deepEqual(errors, ['the database refused an audit log entry'])
})

test('what was recorded before a response is in the log even if the process is killed right after it', async () => {
  const ids = Array.from({ length: 5 }, () => newId('auditEntry'))

  const child = spawn(process.execPath, [AUDIT_PROCESS, ...ids], {
    env: { ...process.env, NODE_TEST_CONTEXT: undefined, DATABASE_URL: deps.database.url },
    stdio: 'inherit',
  })
  const [, signal] = await once(child, 'exit')

  assert.equal(signal, 'SIGKILL')
  const count = async () => (await deps.db.selectFrom('audit_log').select('id').where('id', 'in', ids).execute()).length
  await until(async () => (await count()) === ids.length)
})

test('a call does not wait until its entry is written', async () => {
  const client = await deps.database.pool.connect()
  await client.query('begin')
  await client.query('lock table audit_log')

  const response = await send('POST', '/v1/networks', ada, { name: 'not-delayed' })
  await client.query('commit')
  client.release()

  assert.equal(response.status, 200)
  assert.equal((await list(ada))[0]!.action, 'network.create')
})

test('the operation of a sandbox names the entry of the call that began it; automatic ones name none', async () => {
  const { id } = (await create(ada)).body.data
  await send('POST', `/v1/sandboxes/${id}/pause`, ada)
  const row = () => deps.db.selectFrom('sandboxes').selectAll().where('id', '=', id).executeTakeFirstOrThrow()
  await until(async () => (await row()).status === 'paused')

  assert.equal((await row()).status_audit_id, (await findEntry(ada, 'sandbox.pause', id)).id)

  await send('POST', `/v1/sandboxes/${id}/resume`, ada)
  await until(async () => (await row()).status === 'running')
  hosted.host.vms.get(id)!.signal = { action: 'pause' }
  await until(async () => (await row()).status === 'paused')
  assert.equal((await row()).status_audit_id, null)
})

test('admin commands are recorded for the user they concern, also failed ones, and reading ones are not', async () => {
  const run = (...args: string[]) => {
    const env = { ...process.env, NODE_TEST_CONTEXT: undefined, DATABASE_URL: deps.database.url, SUDO_USER: 'grace' }
    const main = new URL('../admin/main.ts', import.meta.url).pathname
    return promisify(execFile)(process.execPath, [main, '--json', ...args], { env })
  }
  const carol = JSON.parse((await run('user', 'create', 'carol', '--plan', 'pro')).stdout)
  await run('user', 'set-plan', carol.id, 'enterprise')
  await run('user', 'list')
  await run('user', 'set-plan', 'absent', 'free').catch(() => {})
  const log = JSON.parse((await run('audit', '--user', 'carol')).stdout) as Record<string, unknown>[]
  const all = JSON.parse((await run('audit', '--action', 'admin.user.set-plan', '--limit', '10')).stdout)

  assert.deepEqual(
    log.map(({ action, actor_kind, actor, credential, target, outcome }) => [
      action,
      actor_kind,
      actor,
      credential,
      target,
      outcome,
    ]),
    [
      ['admin.user.set-plan', 'operator', 'grace', 'warren admin', carol.id, 'success'],
      ['admin.user.create', 'operator', 'grace', 'warren admin', 'carol', 'success'],
    ],
  )
  assert.deepEqual(
    all.map((entry: { target: string; outcome: string }) => `${entry.target} ${entry.outcome}`),
    ['absent fail', `${carol.id} success`],
  )
  const seen = await list({ key: carol.api_key } as TestUser)
  assert.deepEqual(
    seen.map(({ action, actor }) => [action, actor]),
    [
      ['admin.user.set-plan', 'operator'],
      ['admin.user.create', 'operator'],
    ],
  )
})

test('no entry can be changed or deleted, except by retention', async () => {
  await send('POST', '/v1/networks', eve, { name: 'kept' })
  for (const statement of ['update audit_log set actor = null', 'delete from audit_log', 'truncate audit_log']) {
    await assert.rejects(sql.raw(statement).execute(deps.db), /append-only|violates/, statement)
  }

  const days = (n: number) => new Date(Date.now() - n * 86_400_000)
  const insert = (at: Date) =>
    deps.db
      .insertInto('audit_log')
      .values({ ...EMPTY, id: newId('auditEntry', at.getTime()), at, user_id: 'usr_old' })
      .execute()
  await insert(days(91))
  await insert(days(89))
  await deleteOldAuditEntries.run(deps)

  const left = await deps.db.selectFrom('audit_log').select('at').where('user_id', '=', 'usr_old').execute()
  assert.equal(left.length, 1)
})

test('entries recorded while the database is unreachable are written when it is back', async () => {
  const log = createAuditLog(deps.database, { warn() {}, error() {} })
  const entry = (id: string) => ({ ...EMPTY, id, at: new Date(), user_id: 'usr_outage' })
  await log.record(entry(newId('auditEntry')))
  await sql`alter table audit_log rename to audit_log_away`.execute(deps.db)

  await log.record(entry(newId('auditEntry')))
  await log.record(entry(newId('auditEntry')))
  await sql`alter table audit_log_away rename to audit_log`.execute(deps.db)

  const count = async () =>
    (await deps.db.selectFrom('audit_log').select('id').where('user_id', '=', 'usr_outage').execute()).length
  await until(async () => (await count()) === 3)
  await log.close()
})

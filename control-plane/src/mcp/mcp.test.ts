/** Tests with the official client, in both of its modes: with an initialization first, and stateless. */
import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client'
import { until } from '@warren/kit/testing/until'
import { listenOn, type TestUser } from '../testing/app.ts'
import { createHostedApp } from '../testing/with-host.ts'

const { app, host, user, create, send } = await createHostedApp()
const { url } = await listenOn(app)
const ada = await user({ plan: 'local' })
const eve = await user({ plan: 'local' })

async function connect(headers: Record<string, string>, mode: 'legacy' | 'auto' = 'auto') {
  const client = new Client({ name: 'test', version: '1' }, { versionNegotiation: { mode } })
  await client.connect(new StreamableHTTPClientTransport(new URL(`${url}/mcp`), { requestInit: { headers } }))
  after(() => client.close())
  const raw = (name: string, args: Record<string, unknown> = {}) => client.callTool({ name, arguments: args })
  return {
    client,
    /** What a tool answers, or what it says went wrong. */
    async call(name: string, args: Record<string, unknown> = {}) {
      const { content, isError } = (await raw(name, args)) as { content: { text: string }[]; isError?: boolean }
      const value = JSON.parse(content[0]!.text)
      return isError ? { failed: value } : value
    },
  }
}

const asUser = (who: TestUser) => ({ 'X-Api-Key': who.key })
const newSandbox = async (who = ada): Promise<string> => (await create(who)).body.data.id

async function tokenOf(id: string): Promise<string> {
  return (await send('POST', `/v1/sandboxes/${id}/access-token`, ada)).body.data.token
}

for (const mode of ['legacy', 'auto'] as const) {
  test(`a client with only a URL and a key can use a sandbox (${mode})`, async () => {
    const { call, client } = await connect({ Authorization: `Bearer ${ada.key}` }, mode)
    assert.match(client.getInstructions() ?? '', /virtual machines/)

    const made = await call('create_sandbox', { name: `work-${mode}` })
    const sandbox_id = made.id
    assert.deepEqual([made.status, made.shape], ['running', 's-1vcpu-1gb'])
    await call('write_file', { sandbox_id, path: '/srv/in.txt', content: 'héllo' })
    assert.deepEqual(await call('read_file', { sandbox_id, path: '/srv/in.txt' }), {
      encoding: 'utf8',
      content: 'héllo',
    })
    const ran = await call('exec', { sandbox_id, cmd: 'sh', args: ['-c', 'wc -c < srv/in.txt; exit 3'] })
    assert.deepEqual([ran.stdout.trim(), ran.exit_code], ['6', 3])
    const listed = await call('list_sandboxes', { status: 'running' })
    assert.ok(listed.sandboxes.some((one: { id: string }) => one.id === sandbox_id))

    assert.equal((await call('destroy_sandbox', { sandbox_id })).status, 'destroying')
    await until(async () => (await call('get_sandbox', { sandbox_id })).status === 'destroyed')
  })
}

test('a process is started, followed by sequence number, written to and stopped', async () => {
  const { call } = await connect(asUser(ada))
  const sandbox_id = await newSandbox()
  const { process_id } = await call('start_process', {
    sandbox_id,
    cmd: 'sh',
    args: ['-c', 'echo first; read line; echo "got $line"; exit 4'],
  })

  const first = await call('follow_process', { sandbox_id, process_id })
  assert.deepEqual([first.output, first.seq, first.ended], ['first\n', 1, false])
  const silent = await call('follow_process', { sandbox_id, process_id, after: first.seq, wait_ms: 10 })
  assert.deepEqual(silent, { output: '', seq: 1, ended: false })
  await call('send_input', { sandbox_id, process_id, text: 'it\n' })
  let last = await call('follow_process', { sandbox_id, process_id, after: 1 })
  const text = last.output
  if (!last.ended) last = await call('follow_process', { sandbox_id, process_id, after: last.seq })

  assert.equal(text, 'got it\n')
  assert.deepEqual([last.ended, last.exit_code], [true, 4])
  assert.equal((await call('stop_process', { sandbox_id, process_id })).state, 'exited')
})

test('pause, fork and resume', async () => {
  const { call } = await connect(asUser(ada))
  const sandbox_id = await newSandbox()

  assert.equal((await call('pause_sandbox', { sandbox_id })).status, 'pausing')
  await until(async () => (await call('get_sandbox', { sandbox_id })).status === 'paused')
  const { sandboxes } = await call('fork_sandbox', { sandbox_id, start_paused: true })
  assert.deepEqual([sandboxes.length, sandboxes[0].forked_from], [1, sandbox_id])
  assert.equal((await call('resume_sandbox', { sandbox_id })).status, 'resuming')
  await until(async () => (await call('get_sandbox', { sandbox_id })).status === 'running')
})

test('an access token sees only the tools it may use, for its own sandbox only', async () => {
  const id = await newSandbox()
  const other = await newSandbox()
  const { client, call } = await connect({ 'X-Api-Key': await tokenOf(id) })

  const names = (await client.listTools()).tools.map((tool) => tool.name).sort()
  assert.deepEqual(names, [
    'destroy_sandbox',
    'exec',
    'follow_process',
    'get_sandbox',
    'pause_sandbox',
    'read_file',
    'resume_sandbox',
    'send_input',
    'start_process',
    'stop_process',
    'write_file',
  ])
  assert.equal((await call('get_sandbox')).id, id)
  assert.equal((await call('exec', { cmd: 'echo', args: ['hi'] })).stdout, 'hi\n')
  assert.equal((await call('exec', { sandbox_id: other, cmd: 'true' })).failed.message, 'sandbox not found')
  await assert.rejects(async () => {
    const result = await client.callTool({ name: 'create_sandbox', arguments: {} })
    if (result.isError) throw new Error('refused')
  })
})

test("errors have the text of the API; another user's sandbox is not found", async () => {
  const { call } = await connect(asUser(ada))
  const id = await newSandbox()
  const foreign = await newSandbox(eve)

  assert.deepEqual((await call('get_sandbox', { sandbox_id: foreign })).failed, {
    message: 'sandbox not found',
    code: 'not_found',
  })
  assert.deepEqual((await call('get_sandbox')).failed, { sandbox_id: 'is required', code: 'validation_failed' })
  assert.equal((await call('read_file', { sandbox_id: id, path: '/no/such' })).failed.code, 'file_not_found')
  assert.match((await call('read_file', { sandbox_id: id, path: 'relative' })).failed.path, /absolute/)
  host.hooks = { guest: (stream) => stream.close(2) }
  assert.equal((await call('exec', { sandbox_id: id, cmd: 'true' })).failed.message, 'guest unreachable')
  host.hooks = {}
})

test('invalid input is rejected without any effect', async () => {
  const { client } = await connect(asUser(ada))
  const before = host.calls.length

  const result = await client.callTool({ name: 'exec', arguments: { cmd: 7 } }).catch((error: Error) => error)

  assert.ok(result instanceof Error || result.isError)
  assert.deepEqual(
    host.calls.slice(before).filter((one) => one.includes('/guest/')),
    [],
  )
})

test('files that are not text are returned as base64, large ones truncated', async () => {
  const { call } = await connect(asUser(ada))
  const sandbox_id = await newSandbox()
  const bytes = Buffer.from([0xff, 0x00, 0xfe])
  await call('write_file', { sandbox_id, path: '/b', content: bytes.toString('base64'), encoding: 'base64' })
  await call('exec', { sandbox_id, cmd: 'sh', args: ['-c', 'head -c 3000000 /dev/zero > big'] })

  assert.deepEqual(await call('read_file', { sandbox_id, path: '/b' }), {
    encoding: 'base64',
    content: bytes.toString('base64'),
  })
  const big = await call('read_file', { sandbox_id, path: '/big' })
  assert.deepEqual([big.content.length, big.truncated], [1024 * 1024, true])
})

test('a request without a credential, or with one in the wrong place, is rejected', async () => {
  const token = await tokenOf(await newSandbox())
  const post = (headers: Record<string, string>, query = '') =>
    fetch(`${url}/mcp${query}`, { method: 'POST', headers, body: '{"jsonrpc":"2.0","id":1,"method":"ping"}' })

  for (const headers of [{}, { Authorization: 'Bearer wrong' }, { Authorization: `Basic ${ada.key}` }]) {
    assert.equal((await post(headers as Record<string, string>)).status, 401)
  }
  assert.equal((await post({ 'X-Auth-Token': token })).status, 401)
  assert.equal((await post({}, `?token=${ada.key}`)).status, 401)
  await assert.rejects(connect({ Authorization: 'Bearer wrong' }))
  // Everywhere else Authorization is ignored.
  assert.equal((await fetch(`${url}/v1/whoami`, { headers: { Authorization: `Bearer ${ada.key}` } })).status, 401)
})

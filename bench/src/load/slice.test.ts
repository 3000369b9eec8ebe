import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after, test } from 'node:test'
import { parseAnswer, runSlice } from './slice.ts'

async function serve(answer: (count: number) => { status: number; body: string }) {
  let count = 0
  const keys = new Set<unknown>()
  const server = createServer((request, response) => {
    keys.add(request.headers['x-api-key'])
    const { status, body } = answer(count++)
    response.writeHead(status, { 'Content-Length': Buffer.byteLength(body) }).end(body)
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  after(() => server.close())
  const { port } = server.address() as AddressInfo
  return { url: `http://127.0.0.1:${port}/v1/whoami`, keys, served: () => count }
}
const slice = { headers: { 'X-Api-Key': 'skp_1' }, body: '{"name":"zoë"}', connections: 4, ms: 50 }

test('every answer with the expected bytes counts once', async () => {
  const server = await serve(() => ({ status: 200, body: slice.body }))

  const result = await runSlice({ ...slice, url: server.url })

  assert.equal(result.failed, 0)
  assert.equal(result.ok, server.served())
  assert.ok(result.ok >= slice.connections)
  assert.deepEqual([...server.keys], ['skp_1'])
})

test('an error and other bytes are failures', async () => {
  const server = await serve((count) =>
    count % 2 === 0 ? { status: 500, body: slice.body } : { status: 200, body: '{}' },
  )

  const result = await runSlice({ ...slice, url: server.url })

  assert.equal(result.ok, 0)
  assert.equal(result.failed, server.served())
})

test('a server that is not there is an error, not a slow one', async () => {
  await assert.rejects(runSlice({ ...slice, url: 'http://127.0.0.1:1/' }), /ECONNREFUSED/)
})

test('an answer is read once it is whole', () => {
  const whole = Buffer.from('HTTP/1.1 200 OK\r\nContent-Length: 4\r\nDate: now\r\n\r\nbodyHTTP/1.1')

  assert.equal(parseAnswer(whole.subarray(0, 20)), undefined)
  assert.equal(parseAnswer(whole.subarray(0, whole.indexOf('dyHTTP'))), undefined)
  const answer = parseAnswer(whole)
  assert.equal(answer?.status, 200)
  assert.equal(answer?.body.toString(), 'body')
  assert.equal(whole.subarray(answer?.length).toString(), 'HTTP/1.1')
})

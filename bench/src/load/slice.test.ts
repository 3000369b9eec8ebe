import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after, test } from 'node:test'
import { parseResponse, runSlice } from './slice.ts'

async function serve(respond: (count: number) => { status: number; body: string }) {
  let count = 0
  const keys = new Set<unknown>()
  const server = createServer((request, response) => {
    keys.add(request.headers['x-api-key'])
    const { status, body } = respond(count++)
    response.writeHead(status, { 'Content-Length': Buffer.byteLength(body) }).end(body)
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  after(() => server.close())
  const { port } = server.address() as AddressInfo
  return { url: `http://127.0.0.1:${port}/v1/whoami`, keys, served: () => count }
}
const slice = { headers: { 'X-Api-Key': 'skp_1' }, body: '{"name":"zoë"}', connections: 4, ms: 50 }

test('every response with the expected bytes counts once', async () => {
  const server = await serve(() => ({ status: 200, body: slice.body }))

  const result = await runSlice({ ...slice, url: server.url })

  assert.equal(result.failed, 0)
  assert.equal(result.ok, server.served())
  assert.ok(result.ok >= slice.connections)
  assert.deepEqual([...server.keys], ['skp_1'])
})

test('an error status and unexpected bytes are failures', async () => {
  const server = await serve((count) =>
    count % 2 === 0 ? { status: 500, body: slice.body } : { status: 200, body: '{}' },
  )

  const result = await runSlice({ ...slice, url: server.url })

  assert.equal(result.ok, 0)
  assert.equal(result.failed, server.served())
})

test('a server that cannot be reached is an error, not a slow server', async () => {
  await assert.rejects(runSlice({ ...slice, url: 'http://127.0.0.1:1/' }), /ECONNREFUSED/)
})

test('a response is parsed once it is complete', () => {
  const bytes = Buffer.from('HTTP/1.1 200 OK\r\nContent-Length: 4\r\nDate: now\r\n\r\nbodyHTTP/1.1')

  assert.equal(parseResponse(bytes.subarray(0, 20)), undefined)
  assert.equal(parseResponse(bytes.subarray(0, bytes.indexOf('dyHTTP'))), undefined)
  const response = parseResponse(bytes)
  assert.equal(response?.status, 200)
  assert.equal(response?.body.toString(), 'body')
  assert.equal(bytes.subarray(response?.length).toString(), 'HTTP/1.1')
})

import assert from 'node:assert/strict'
import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { mkdtemp, rm, stat, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { scaleLimit } from '../testing/slowness.ts'
import { createResolve, type ResolvedAddress } from './resolve.ts'

const [A, AAAA] = [1, 28]
/** Names below `slow` get no answer. */
const ZONE: Record<string, { [type: number]: number[] }> = {
  'hooks.example.com': { [A]: [93, 184, 215, 14], [AAAA]: [0x26, 6, 0x47, 0, ...Array(11).fill(0), 1] },
  'four.example.com': { [A]: [93, 184, 215, 14] },
}
const server = createSocket('udp4')
server.on('message', (query, peer) => {
  const { name, type, end } = parseQuestion(query)
  if (name.endsWith('slow.example.com')) return
  server.send(renderAnswer(query.subarray(0, end), ZONE[name], type), peer.port, peer.address)
})
server.bind(0, '127.0.0.1')
await once(server, 'listening')
after(() => server.close())

const folder = await mkdtemp(path.join(tmpdir(), 'warren-resolve-'))
after(() => rm(folder, { recursive: true }))
const hostsFile = path.join(folder, 'hosts')
await writeFile(
  hostsFile,
  '127.0.0.1 localhost\n10.20.0.5\tReceiver receiver.internal # hooks.example.com\n# 1.2.3.4 x\n',
)
const resolve = createResolve({ hostsFile, servers: [`127.0.0.1:${server.address().port}`], timeoutMs: 500 })
const find = (host: string): Promise<ResolvedAddress[]> =>
  new Promise((done, fail) => resolve(host, (error, found) => (error ? fail(error) : done(found))))
const addressesOf = async (host: string) => (await find(host)).map(({ address }) => address)

test('names have the addresses of the hosts file, otherwise those of DNS', async () => {
  assert.deepEqual(await addressesOf('receiver'), ['10.20.0.5'])
  assert.deepEqual(await addressesOf('RECEIVER.internal.'), ['10.20.0.5'])
  assert.deepEqual(await addressesOf('localhost'), ['127.0.0.1'])
  assert.deepEqual(await addressesOf('app.localhost'), ['127.0.0.1', '::1'])
  assert.deepEqual(await find('hooks.example.com'), [
    { address: '93.184.215.14', family: 4 },
    { address: '2606:4700::1', family: 6 },
  ])
  assert.deepEqual(await addressesOf('four.example.com'), ['93.184.215.14'])
})

test('a name that does not exist and a silent name server are different errors', async () => {
  await assert.rejects(find('absent.example.com'), { code: 'ENOTFOUND' })
  await assert.rejects(find('slow.example.com'), { code: 'EAI_AGAIN' })
})

test('names of a silent name server hold up neither other lookups nor files', async () => {
  const slow = Array.from({ length: 50 }, (_, n) => find(`${n}.slow.example.com`).catch((error) => error.code))
  const startedAt = performance.now()

  await stat(hostsFile)
  await find('hooks.example.com')

  assert.ok(performance.now() - startedAt < scaleLimit(300), `${performance.now() - startedAt} ms`)
  assert.deepEqual(new Set(await Promise.all(slow)), new Set(['EAI_AGAIN']))
})

/** RFC 1035 §4.1. */
function parseQuestion(query: Buffer): { name: string; type: number; end: number } {
  const labels: string[] = []
  let at = 12
  while (query[at] !== 0) {
    labels.push(query.toString('latin1', at + 1, at + 1 + query[at]!))
    at += 1 + query[at]!
  }
  return { name: labels.join('.').toLowerCase(), type: query.readUInt16BE(at + 1), end: at + 5 }
}

function renderAnswer(question: Buffer, records: { [type: number]: number[] } | undefined, type: number): Buffer {
  const data = records?.[type]
  const head = Buffer.from(question)
  head.writeUInt16BE(records ? 0x8180 : 0x8183, 2)
  head.writeUInt16BE(data ? 1 : 0, 6)
  head.writeUInt32BE(0, 8)
  if (!data) return head
  const record = Buffer.from([0xc0, 12, 0, type, 0, 1, 0, 0, 0, 60, 0, data.length, ...data])
  return Buffer.concat([head, record])
}

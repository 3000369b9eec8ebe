/** A ClientHello of Node's TLS client, split and corrupted in many ways. */
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { type AddressInfo, createServer, type Socket } from 'node:net'
import { test } from 'node:test'
import { connect } from 'node:tls'
import { type ClientHelloOutcome, ClientHelloReader } from './client-hello.ts'

const HEADER = 5
const hello = await realHello('Shop.Example')
const message = hello.subarray(HEADER)

test('the name of a real ClientHello is found, in lower case', () => {
  assert.deepEqual(new ClientHelloReader().push(hello), { name: 'shop.example' })
})

test('split at any byte, the name is the same, and is not found before the last byte', () => {
  for (let splitAt = 1; splitAt < hello.length; splitAt++) {
    const reader = new ClientHelloReader()
    assert.equal(reader.push(hello.subarray(0, splitAt)), undefined, `after ${splitAt} bytes`)
    assert.deepEqual(reader.push(hello.subarray(splitAt)), { name: 'shop.example' }, `split at ${splitAt}`)
  }
})

test('the name is found with one byte per segment and one byte per record', () => {
  assert.deepEqual(feed([...hello].map((byte) => Buffer.from([byte]))), { name: 'shop.example' })
  assert.deepEqual(feed([Buffer.concat(records(1))]), { name: 'shop.example' })
})

test('the name is found when two records split the message at any byte', () => {
  for (let splitAt = 1; splitAt < message.length; splitAt++) {
    const split = [message.subarray(0, splitAt), message.subarray(splitAt)].map(record)
    assert.deepEqual(feed([Buffer.concat(split)]), { name: 'shop.example' }, `record split at ${splitAt}`)
  }
})

test('a ClientHello without a name, with two names, an address or invalid bytes is refused', async () => {
  const name = Buffer.from('Shop.Example')
  const at = hello.indexOf(name)
  const put = (text: string) => {
    const changed = Buffer.from(hello)
    changed.write(text, at, 'latin1')
    return changed
  }
  const typeAt = at - 9 // extension type, its length, the list's length, the kind, the name's length
  const renamed = (type: number) => {
    const changed = Buffer.from(hello)
    changed.writeUInt16BE(type, typeAt)
    return changed
  }

  assert.equal(hello.readUInt16BE(typeAt), 0)
  assert.deepEqual(feed([renamed(0xfe0d)]), { refusal: 'no_server_name' })
  assert.deepEqual(feed([put('192.168.10.1')]), { refusal: 'bad_request' })
  assert.deepEqual(feed([put('shop\0example')]), { refusal: 'bad_request' })
  assert.deepEqual(feed([put('sh\xf6p.example')]), { refusal: 'bad_request' })
  assert.deepEqual(feed([put('shop.exampl.')]), { name: 'shop.exampl' })
  assert.deepEqual(feed([put('shop..exampl')]), { refusal: 'bad_request' })
  assert.deepEqual(feed([twice(hello, typeAt)]), { refusal: 'bad_request' })
})

test('other data than a ClientHello is refused at its first bytes', () => {
  for (const bytes of ['GET / HTTP/1.1\r\n', '\x80\x2e\x01\x03\x01', '\x17\x03\x03\x00\x01a', '\x16\x02']) {
    assert.deepEqual(new ClientHelloReader().push(Buffer.from(bytes, 'latin1')), { refusal: 'bad_request' })
  }
  const serverHello = Buffer.from(hello)
  serverHello.writeUInt8(2, HEADER)
  assert.deepEqual(feed([serverHello]), { refusal: 'bad_request' })
})

test('empty records, too long records or messages and data after the ClientHello are refused', () => {
  const tooLong = Buffer.concat([Buffer.from([1, 1, 0, 0]), Buffer.alloc(100)])

  assert.deepEqual(feed([record(Buffer.alloc(0))]), { refusal: 'bad_request' })
  assert.deepEqual(feed([Buffer.from([22, 3, 1, 0x40, 1])]), { refusal: 'bad_request' })
  assert.deepEqual(feed([record(tooLong)]), { refusal: 'bad_request' })
  assert.deepEqual(feed([record(Buffer.concat([message, message]))]), { refusal: 'bad_request' })
})

test('random corruption never throws and never yields a name that is not in the bytes', () => {
  for (let round = 0; round < 20_000; round++) {
    const corrupted = Buffer.from(hello)
    for (let changes = 1 + (round % 4); changes > 0; changes--) {
      corrupted[randomInt(corrupted.length)] = randomInt(256)
    }
    const outcome = new ClientHelloReader().push(corrupted.subarray(0, 1 + randomInt(corrupted.length)))
    if (outcome !== undefined && 'name' in outcome) {
      assert.ok(corrupted.toString('latin1').toLowerCase().includes(outcome.name))
    }
  }
  for (let round = 0; round < 2_000; round++) new ClientHelloReader().push(randomBytes(200))
})

const randomInt = (end: number): number => Math.floor(Math.random() * end)

function feed(chunks: readonly Buffer[]): ClientHelloOutcome | undefined {
  const reader = new ClientHelloReader()
  for (const [index, chunk] of chunks.entries()) {
    const outcome = reader.push(chunk)
    if (outcome === undefined) continue
    assert.equal(index, chunks.length - 1, 'an outcome before the last byte')
    return outcome
  }
  return undefined
}

function record(fragment: Buffer): Buffer {
  const header = Buffer.from([22, 3, 1, 0, 0])
  header.writeUInt16BE(fragment.length, 3)
  return Buffer.concat([header, fragment])
}

function records(bytes: number): Buffer[] {
  const count = Math.ceil(message.length / bytes)
  return Array.from({ length: count }, (_, index) => record(message.subarray(index * bytes, (index + 1) * bytes)))
}

/** The same ClientHello with its server name extension twice and correct lengths. */
function twice(whole: Buffer, typeAt: number): Buffer {
  const extension = whole.subarray(typeAt, typeAt + 4 + whole.readUInt16BE(typeAt + 2))
  const body = Buffer.concat([whole.subarray(HEADER), extension])
  body.writeUIntBE(body.length - 4, 1, 3)
  // The length of the extensions follows version, random, session, cipher suites and compression.
  let at = 4 + 2 + 32
  at += 1 + body.readUInt8(at)
  at += 2 + body.readUInt16BE(at)
  at += 1 + body.readUInt8(at)
  body.writeUInt16BE(body.readUInt16BE(at) + extension.length, at)
  return record(body)
}

async function realHello(servername: string): Promise<Buffer> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const client = connect({ port: (server.address() as AddressInfo).port, host: '127.0.0.1', servername })
  client.on('error', () => {})
  const [socket] = (await once(server, 'connection')) as [Socket]
  const [bytes] = (await once(socket, 'data')) as [Buffer]
  client.destroy()
  socket.destroy()
  server.close()
  return bytes
}

/** A ClientHello from Node's own TLS, cut and bent in every way we could think of. */
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { type AddressInfo, createServer, type Socket } from 'node:net'
import { test } from 'node:test'
import { connect } from 'node:tls'
import { ClientHelloReader, type HelloOutcome } from './client-hello.ts'

const HEADER = 5
const hello = await realHello('Shop.Example')
const message = hello.subarray(HEADER)

test('the name of a real hello is found, in lower case', () => {
  assert.deepEqual(new ClientHelloReader().push(hello), { name: 'shop.example' })
})

test('cut at every byte, it is the same name, and nothing before the last byte', () => {
  for (let cut = 1; cut < hello.length; cut++) {
    const reader = new ClientHelloReader()
    assert.equal(reader.push(hello.subarray(0, cut)), undefined, `after ${cut} bytes`)
    assert.deepEqual(reader.push(hello.subarray(cut)), { name: 'shop.example' }, `cut at ${cut}`)
  }
})

test('one byte at a time, and one byte per record', () => {
  assert.deepEqual(feed([...hello].map((byte) => Buffer.from([byte]))), { name: 'shop.example' })
  assert.deepEqual(feed([Buffer.concat(records(1))]), { name: 'shop.example' })
})

test('split over two records at every byte', () => {
  for (let cut = 1; cut < message.length; cut++) {
    const split = [message.subarray(0, cut), message.subarray(cut)].map(record)
    assert.deepEqual(feed([Buffer.concat(split)]), { name: 'shop.example' }, `record cut at ${cut}`)
  }
})

test('without a name, with two names, with an address or odd bytes: refused', async () => {
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

test('what is no hello is refused at its first byte', () => {
  for (const bytes of ['GET / HTTP/1.1\r\n', '\x80\x2e\x01\x03\x01', '\x17\x03\x03\x00\x01a', '\x16\x02']) {
    assert.deepEqual(new ClientHelloReader().push(Buffer.from(bytes, 'latin1')), { refusal: 'bad_request' })
  }
  const serverHello = Buffer.from(hello)
  serverHello.writeUInt8(2, HEADER)
  assert.deepEqual(feed([serverHello]), { refusal: 'bad_request' })
})

test('empty records, a record too long, a message too long, and words after the hello: refused', () => {
  const tooLong = Buffer.concat([Buffer.from([1, 1, 0, 0]), Buffer.alloc(100)])

  assert.deepEqual(feed([record(Buffer.alloc(0))]), { refusal: 'bad_request' })
  assert.deepEqual(feed([Buffer.from([22, 3, 1, 0x40, 1])]), { refusal: 'bad_request' })
  assert.deepEqual(feed([record(tooLong)]), { refusal: 'bad_request' })
  assert.deepEqual(feed([record(Buffer.concat([message, message]))]), { refusal: 'bad_request' })
})

test('bent at random it never throws, and never finds another name than one that is spelled in it', () => {
  for (let round = 0; round < 20_000; round++) {
    const bent = Buffer.from(hello)
    for (let changes = 1 + (round % 4); changes > 0; changes--) {
      bent[randomInt(bent.length)] = randomInt(256)
    }
    const outcome = new ClientHelloReader().push(bent.subarray(0, 1 + randomInt(bent.length)))
    if (outcome !== undefined && 'name' in outcome) {
      assert.ok(bent.toString('latin1').toLowerCase().includes(outcome.name))
    }
  }
  for (let round = 0; round < 2_000; round++) new ClientHelloReader().push(randomBytes(200))
})

const randomInt = (end: number): number => Math.floor(Math.random() * end)

function feed(chunks: readonly Buffer[]): HelloOutcome | undefined {
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

/** The same with its server name extension a second time, all lengths right. */
function twice(whole: Buffer, typeAt: number): Buffer {
  const extension = whole.subarray(typeAt, typeAt + 4 + whole.readUInt16BE(typeAt + 2))
  const body = Buffer.concat([whole.subarray(HEADER), extension])
  body.writeUIntBE(body.length - 4, 1, 3)
  // After version, random, session, suites and compression comes the length of the extensions.
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

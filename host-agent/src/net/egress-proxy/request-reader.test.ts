/** Requests of one connection, valid and malicious, split at every byte. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { RequestReader } from './request-reader.ts'

const GET = 'GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n'
const POST = 'POST /a HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 5\r\n\r\nhello'
const CHUNKED =
  'POST /b HTTP/1.1\r\nHost: shop.example\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n3;x=y\r\nabc\r\n0\r\nTrailer: x\r\n\r\n'

test('consecutive requests are forwarded unchanged, wherever they are split', () => {
  const all = POST + CHUNKED + GET + POST
  for (let splitAt = 1; splitAt < all.length; splitAt++) {
    const { text, refusal, host } = read([all.slice(0, splitAt), all.slice(splitAt)])
    assert.deepEqual(
      { text, refusal, host },
      { text: all, refusal: undefined, host: 'shop.example' },
      `split at ${splitAt}`,
    )
  }
  assert.equal(read([...all]).text, all)
})

test('the host is normalised and may contain the port of the connection', () => {
  for (const host of ['SHOP.example', 'shop.example.', 'shop.example:80', ' shop.example ', 'shop.example:']) {
    assert.equal(read([`GET / HTTP/1.1\r\nHost:${host}\r\n\r\n`]).host, 'shop.example', host)
  }
  assert.equal(read(['GET / HTTP/1.0\r\nHost: shop.example\r\n\r\n']).host, 'shop.example')
})

test('an absolute URL in the request line must name the same host', () => {
  const request = (target: string) => read([`GET ${target} HTTP/1.1\r\nHost: shop.example\r\n\r\n`])

  assert.equal(request('http://Shop.Example/x').host, 'shop.example')
  assert.equal(request('http://shop.example:80/x').host, 'shop.example')
  for (const target of [
    'http://other.example/x',
    'http://shop.example@other.example/',
    'http://shop.example:8080/',
    'https://shop.example/',
    'shop.example:443',
  ]) {
    assert.equal(request(target).refusal, 'bad_request', target)
  }
})

test('a request without a host, or with more than one, is refused', () => {
  assert.equal(read(['GET / HTTP/1.0\r\n\r\n']).refusal, 'no_server_name')
  assert.equal(read(['GET / HTTP/1.1\r\nHost:\r\n\r\n']).refusal, 'no_server_name')
  for (const lines of [
    'Host: shop.example\r\nHost: other.example',
    'Host: shop.example\r\nhost: shop.example',
    'Host: shop.example, other.example',
    'Host: 192.168.0.1',
    'Host: sh\xf6p.example',
    'Host : shop.example',
    ' Host: shop.example',
    'X: y\r\n Host: shop.example\r\nHost: shop.example',
    'Host: shop.example\nHost: other.example',
    'Host: shop.example\0.other.example',
  ]) {
    assert.equal(read([`GET / HTTP/1.1\r\n${lines}\r\n\r\n`]).refusal, 'bad_request', JSON.stringify(lines))
  }
})

test('CONNECT, HTTP/2 and other protocols are refused', () => {
  const host = 'Host: shop.example\r\n\r\n'
  for (const text of [
    `CONNECT shop.example:443 HTTP/1.1\r\n${host}`,
    'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n',
    `GET / HTTP/1.2\r\n${host}`,
    `GET /\r\n${host}`,
    `GET  / HTTP/1.1\r\n${host}`,
    `\r\nGET / HTTP/1.1\r\n${host}`,
    `SSH-2.0-x\r\n\r\n`,
  ]) {
    assert.equal(read([text]).refusal, 'bad_request', JSON.stringify(text))
  }
})

test('a second request to another host is refused, pipelined or not, and none of it is forwarded', () => {
  const other = 'GET /secret HTTP/1.1\r\nHost: other.example\r\n\r\n'
  for (const first of [GET, POST, CHUNKED]) {
    for (const chunks of [[first + other], [first, other]]) {
      const { text, refusal } = read(chunks)
      assert.deepEqual({ text, refusal }, { text: first, refusal: 'other_host' })
    }
  }
})

test('a body whose length two servers could read differently is refused', () => {
  for (const lines of [
    'Content-Length: 5\r\nTransfer-Encoding: chunked',
    'Content-Length: 5\r\nContent-Length: 6',
    'Content-Length: 5\r\nContent-Length: 5',
    'Content-Length: +5',
    'Content-Length: 0x5',
    'Content-Length: 5, 5',
    'Transfer-Encoding: gzip, chunked',
    'Transfer-Encoding: identity',
    'Transfer-Encoding: chunked\r\nTransfer-Encoding: identity',
    'Transfer-Encoding: \x0bchunked',
  ]) {
    const { refusal } = read([`POST / HTTP/1.1\r\nHost: shop.example\r\n${lines}\r\n\r\n5\r\nhello\r\n0\r\n\r\n`])
    assert.equal(refusal, 'bad_request', lines)
  }
  const chunks = (body: string) =>
    read([`POST / HTTP/1.1\r\nHost: shop.example\r\nTransfer-Encoding: chunked\r\n\r\n${body}`]).refusal
  for (const body of [
    '5\nhello\r\n',
    ' 5\r\nhello\r\n',
    '-1\r\n',
    '5\r\nhelloX\r\n',
    '0x5\r\nhello\r\n',
    '0\r\nGET / HTTP/1.1\r\n',
  ]) {
    assert.equal(chunks(body), 'bad_request', JSON.stringify(body))
  }
  assert.equal(
    read(['POST / HTTP/1.0\r\nHost: shop.example\r\nTransfer-Encoding: chunked\r\n\r\n']).refusal,
    'bad_request',
  )
})

test('a head or a line that does not end is refused', () => {
  assert.equal(read([`GET / HTTP/1.1\r\nHost: shop.example\r\nX: ${'y'.repeat(70_000)}`]).refusal, 'bad_request')
  const line = `${CHUNKED.split('\r\n\r\n')[0]}\r\n\r\n5;${'x'.repeat(9_000)}`
  assert.equal(read([line]).refusal, 'bad_request')
})

test('a WebSocket is not parsed once the server accepts it; otherwise the next request is checked as usual', () => {
  const upgrade = 'GET /ws HTTP/1.1\r\nHost: shop.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n'
  const frames = Buffer.from([0x81, 0x85, 1, 2, 3, 4, 5, 6, 7, 8, 9])

  const accepted = new RequestReader(80)
  assert.equal(Buffer.concat(accepted.push(Buffer.concat([Buffer.from(upgrade), frames])).forward).toString(), upgrade)
  assert.equal(accepted.awaitsUpgrade, true)
  assert.deepEqual(Buffer.concat(accepted.settleUpgrade(true).forward), frames)
  assert.deepEqual(accepted.push(frames), { forward: [frames] })

  const refused = new RequestReader(80)
  refused.push(Buffer.from(upgrade))
  refused.settleUpgrade(false)
  assert.equal(refused.push(Buffer.from('GET / HTTP/1.1\r\nHost: other.example\r\n\r\n')).refusal, 'other_host')

  const h2c = read([`${GET.replace('\r\n\r\n', '\r\nUpgrade: h2c\r\n\r\n')}PRI * HTTP/2.0\r\n\r\n`])
  assert.equal(h2c.refusal, 'bad_request')
})

test('random corruption never throws, and what is forwarded is a prefix of the input', () => {
  const all = Buffer.from(POST + CHUNKED + GET)
  for (let round = 0; round < 20_000; round++) {
    const corrupted = Buffer.from(all)
    for (let changes = 1 + (round % 3); changes > 0; changes--) {
      corrupted[Math.floor(Math.random() * corrupted.length)] = Math.floor(Math.random() * 256)
    }
    const { text } = read([corrupted.toString('latin1')])
    assert.ok(corrupted.toString('latin1').startsWith(text))
  }
})

function read(chunks: readonly string[]) {
  const reader = new RequestReader(80)
  let text = ''
  let refusal: string | undefined
  for (const chunk of chunks) {
    const step = reader.push(Buffer.from(chunk, 'latin1'))
    text += Buffer.concat(step.forward).toString('latin1')
    refusal ??= step.refusal
  }
  return { text, refusal, host: reader.host }
}

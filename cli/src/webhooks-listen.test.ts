import assert from 'node:assert/strict'
import { createHmac } from 'node:crypto'
import { test } from 'node:test'
import { checkSignature } from './verify-webhook.ts'
import { parsePlace, startReceiver } from './webhooks-listen.ts'

const SECRET = 'whsec_test'
const BODY = '{"event":"sandbox.create","occurredAt":"2026-01-02T03:04:05.006Z","data":{"id":"sb-1","name":"web"}}'
const sign = (timestamp: number, body = BODY, secret = SECRET) => ({
  'x-webhook-timestamp': String(timestamp),
  'x-webhook-signature': `sha256=${createHmac('sha256', secret).update(`${timestamp}.${body}`).digest('hex')}`,
})
const nowS = () => Math.floor(Date.now() / 1000)

test('a webhook is printed if its signature is right, and refused otherwise', async () => {
  const lines: string[] = []
  const receiver = await startReceiver(parsePlace('0'), {
    secret: SECRET,
    json: false,
    print: (line) => lines.push(line),
  })
  const post = async (headers: Record<string, string>, body = BODY) =>
    (await fetch(receiver.url, { method: 'POST', headers, body })).status

  const statuses = [
    await post(sign(nowS())),
    await post({}),
    await post(sign(nowS(), BODY, 'whsec_other')),
    await post(sign(nowS()), BODY.replace('web', 'WEB')),
    await post(sign(nowS() - 600)),
  ]
  receiver.close()

  assert.deepEqual(statuses, [200, 401, 401, 401, 401])
  assert.deepEqual(lines, [
    '2026-01-02T03:04:05.006Z  sandbox.create              {"id":"sb-1","name":"web"}',
    'refused a request: it is not signed',
    'refused a request: the signature is wrong',
    'refused a request: the signature is wrong',
    'refused a request: the timestamp is too old',
  ])
})

test('a timestamp that is no number is refused', () => {
  const body = 'x'
  const signature = `sha256=${createHmac('sha256', SECRET).update(`soon.${body}`).digest('hex')}`

  assert.equal(checkSignature(SECRET, { timestamp: 'soon', signature, body }), 'the timestamp is too old')
})

test('a port means loopback, a URL of this machine its port, and another URL all addresses', () => {
  assert.deepEqual(parsePlace('9000'), { url: 'http://127.0.0.1:9000/', host: '127.0.0.1', port: 9000 })
  assert.deepEqual(parsePlace('http://localhost:9000/hook'), {
    url: 'http://localhost:9000/hook',
    host: '127.0.0.1',
    port: 9000,
  })
  assert.deepEqual(parsePlace('https://tunnel.example.com/x', '9000'), {
    url: 'https://tunnel.example.com/x',
    host: '0.0.0.0',
    port: 9000,
  })
  assert.throws(() => parsePlace('ftp://example.com'), /neither a port nor/)
})

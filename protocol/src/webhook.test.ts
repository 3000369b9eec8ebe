import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Value } from 'typebox/value'
import { newId } from './ids.ts'
import {
  checkWebhookEvents,
  checkWebhookUrl,
  WebhookCreateBody,
  WebhookDeliveryView,
  webhookRetryDelayMs,
  webhookSignedText,
} from './webhook.ts'
import { WEBHOOK_ACTIONS, WEBHOOK_DATA } from './webhook-events.ts'

test('the data of every action names its resource', () => {
  assert.deepEqual(Object.keys(WEBHOOK_DATA), [...WEBHOOK_ACTIONS])
  for (const [action, schema] of Object.entries(WEBHOOK_DATA)) {
    assert.ok(schema.required.includes('id' as never) && schema.required.includes('name' as never), action)
  }
})

test('the data of a patch contains only the changed fields', () => {
  const base = { id: newId('sandbox'), name: 'brave-otter' }

  assert.ok(Value.Check(WEBHOOK_DATA['sandbox.patch'], { ...base, ingress_enabled: true }))
  assert.ok(!Value.Check(WEBHOOK_DATA['sandbox.patch'], { ...base, ingress_enabled: null }))
})

test('a delivery is attempted six times with increasing delays', () => {
  const delays = [1, 2, 3, 4, 5].map(webhookRetryDelayMs)

  assert.deepEqual(delays, [5_000, 30_000, 120_000, 600_000, 3_600_000])
  assert.equal(webhookRetryDelayMs(6), undefined)
})

test('the signature covers the timestamp and the body', () => {
  assert.equal(webhookSignedText(1_700_000_000, '{"event":"disk.create"}'), '1700000000.{"event":"disk.create"}')
})

test('an endpoint needs a URL, and its events can be absent, null or empty', () => {
  const url = 'https://hooks.example.com/x?y=1'

  for (const events of [undefined, null, [], ['disk.create']]) {
    assert.ok(Value.Check(WebhookCreateBody, events === undefined ? { url } : { url, events }))
  }
  assert.ok(!Value.Check(WebhookCreateBody, {}))
  assert.equal(checkWebhookUrl(url), undefined)
  for (const bad of ['hooks.example.com', 'ftp://example.com', 'http:example.com', 'https://u:p@example.com', '']) {
    assert.equal(typeof checkWebhookUrl(bad), 'string', bad)
  }
})

test('an unknown action is refused by name', () => {
  assert.equal(checkWebhookEvents(['sandbox.create', 'template.build.complete']), undefined)
  assert.equal(checkWebhookEvents(['sandbox.create', 'sandbox.explode']), 'unknown action "sandbox.explode"')
})

test('a pending delivery has null for deliveredAt and omits the other optional fields', () => {
  const delivery = {
    id: 'd1',
    endpointId: '0b1c2d3e-4f50-4a6b-8c7d-9e0f1a2b3c4d',
    eventAction: 'disk.create',
    status: 'pending',
    attempts: 0,
    payload: { event: 'disk.create', occurredAt: '2026-01-02T03:04:05.006Z', data: { id: 'x' } },
    deliveredAt: null,
    createdAt: '2026-01-02T03:04:05.006Z',
  }

  assert.ok(Value.Check(WebhookDeliveryView, delivery))
  assert.ok(!Value.Check(WebhookDeliveryView, { ...delivery, lastError: null }))
  assert.ok(!Value.Check(WebhookDeliveryView, { ...delivery, status: 'retrying' }))
})

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { runChecks } from './check.ts'
import { checkIngressNames, ingressNameChecks } from './ingress-names.ts'

const fail = async () => Promise.reject(new Error('ENOTFOUND'))

test('names below localhost must resolve to this machine', async () => {
  const asked: string[] = []
  const good = await checkIngressNames({}, async (name) => {
    asked.push(name)
    return ['::1', '127.0.0.1']
  })
  const absent = await checkIngressNames({}, fail)
  const elsewhere = await checkIngressNames({}, async () => ['192.0.2.1'])

  assert.match(asked[0]!, /^[0-9a-z]{26}-80\.localhost$/)
  assert.deepEqual(good, { ok: true, detail: '<id>-<port>.localhost is ::1, 127.0.0.1' })
  for (const bad of [absent, elsewhere]) {
    assert.ok(!bad.ok)
    assert.match(bad.fix, /apt-get install libnss-myhostname.*nsswitch\.conf/)
  }
})

test('names below a configured domain need a DNS record', async () => {
  const env = { WARREN_INGRESS_DOMAIN: 'apps.example.com:8443' }

  assert.deepEqual(await checkIngressNames(env, async () => ['192.0.2.1']), {
    ok: true,
    detail: '<id>-<port>.apps.example.com is 192.0.2.1',
  })
  assert.deepEqual(await checkIngressNames(env, fail), {
    ok: false,
    detail: '<id>-<port>.apps.example.com does not resolve',
    fix: 'add a DNS record for *.apps.example.com with the address of this machine',
  })
})

test('after the set-up, names below localhost resolve on this machine', {
  skip: process.getuid?.() === 0 ? false : 'set-up installs packages as root only',
}, async () => {
  const [outcome] = await runChecks(ingressNameChecks({ env: {} }))

  assert.equal(outcome?.ok, true, JSON.stringify(outcome))
})

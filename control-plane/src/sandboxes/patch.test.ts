import assert from 'node:assert/strict'
import { test } from 'node:test'
import { isTerminal, SANDBOX_STATUSES } from '@warren/protocol'
import { insertSandbox } from '../testing/sandboxes.ts'
import { createHostedApp } from '../testing/with-host.ts'

const { deps, user, send, create, get } = await createHostedApp({ config: { ingressDomain: 'box.test' } })
const ada = await user()
const patch = (id: string, body: unknown, who = ada) => send('PATCH', `/v1/sandboxes/${id}`, who, body)

test('only given fields change, and the response is the full view', async () => {
  const { id } = await insertSandbox(deps.db, ada.id, 'running', { auto_pause_after_seconds: 100 })

  const first = (await patch(id, { ingress_enabled: true })).body.data
  const second = (await patch(id, { auto_pause_after_seconds: 3600, ingress_enabled: null })).body.data
  const third = (await patch(id, {})).body.data

  assert.deepEqual([first.ingress_enabled, first.auto_pause_after_seconds], [true, 100])
  assert.match(first.ingress_url_template, /^https:\/\/[0-9a-z]{26}-<port>\.box\.test$/)
  assert.deepEqual([second.ingress_enabled, second.auto_pause_after_seconds], [true, 3600])
  assert.deepEqual(third, second)
  assert.deepEqual((await get(`/v1/sandboxes/${id}`, ada.key)).body.data, third)
})

test('disable_auto_pause wins over a number', async () => {
  const { id } = await insertSandbox(deps.db, ada.id, 'running', { auto_pause_after_seconds: 100 })

  const { body } = await patch(id, { auto_pause_after_seconds: 600, disable_auto_pause: true })

  assert.ok(!('auto_pause_after_seconds' in body.data))
  assert.equal((await patch(id, { disable_auto_pause: false, auto_pause_after_seconds: 60 })).status, 200)
})

test('a sandbox can be patched in every status until it has ended, then it is 409', async () => {
  for (const status of SANDBOX_STATUSES) {
    const { id } = await insertSandbox(deps.db, ada.id, status, { owner: deps.processId })
    const response = await patch(id, { ingress_enabled: true })
    assert.deepEqual([status, response.status], [status, isTerminal(status) ? 409 : 200])
    if (isTerminal(status)) {
      assert.deepEqual(response.body.data, {
        message: `sandbox is ${status}, expected a living sandbox`,
        code: 'wrong_state',
      })
    }
  }
})

test('invalid values are 400, and a sandbox of another user is 404 before that', async () => {
  const { id } = await insertSandbox(deps.db, ada.id)
  const bob = await user()

  for (const body of [{ auto_pause_after_seconds: 5 }, { auto_pause_after_seconds: 1e9 }, { ingress_enabled: 'x' }]) {
    const response = await patch(id, body)
    assert.deepEqual([response.status, Object.keys(response.body.data)[0]], [400, Object.keys(body)[0]])
    assert.equal((await patch(id, body, bob)).status, 404)
  }
})

test('a sandbox of the caller is found by its address until it has ended', async () => {
  const { id, ip } = (await create(ada)).body.data
  const bob = await user()
  const at = (address: string, who = ada) => get(`/v1/sandboxes/by-ip/${encodeURIComponent(address)}`, who.key)

  assert.equal((await at(ip)).body.data.id, id)
  for (const response of [await at(ip, bob), await at('100.64.255.250'), await at('nonsense'), await at('::1')]) {
    assert.deepEqual([response.status, response.body.data.message], [404, 'sandbox not found'])
  }
})

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { planGateway } from './gateway.ts'

const ALL = {
  WARREN_GATEWAY_PAY_TO: '0x00',
  WARREN_GATEWAY_RPC_ARBITRUM: 'http://a',
  WARREN_GATEWAY_RPC_BASE: 'http://b',
}

test('with its three settings the gateway is in production', () => {
  assert.deepEqual(planGateway(ALL, true), { kind: 'production' })
  assert.deepEqual(planGateway({ ...ALL, WARREN_HOST: '0.0.0.0' }, true), { kind: 'production' })
})

test('with some of them it stays off, and what is missing is named', () => {
  const { WARREN_GATEWAY_PAY_TO: _, ...some } = ALL

  assert.deepEqual(planGateway(some, true), { kind: 'off', missing: ['WARREN_GATEWAY_PAY_TO'] })
})

test('without any of them it has a development chain, where only this machine can reach it', () => {
  assert.deepEqual(planGateway({}, true), { kind: 'development' })
  for (const name of ['WARREN_HOST', 'WARREN_GATEWAY_HOST', 'WARREN_GATEWAY_APPS_HOST']) {
    assert.deepEqual(planGateway({ [name]: '0.0.0.0' }, true), { kind: 'off', missing: Object.keys(ALL) }, name)
  }
})

test('without virtual machines, or when it is not wanted, it is off without a word', () => {
  assert.deepEqual(planGateway({}, false), { kind: 'off', missing: [] })
  assert.deepEqual(planGateway({ ...ALL, WARREN_GATEWAY: 'off' }, true), { kind: 'off', missing: [] })
})

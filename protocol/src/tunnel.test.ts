import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Value } from 'typebox/value'
import { shellWsToken, TunnelParams } from './tunnel.ts'

test('a tunnel needs a valid port', () => {
  for (const port of [1, 65_535]) assert.ok(Value.Check(TunnelParams, { id: 'sb-x', port }))
  for (const port of [0, 65_536, 1.5, 'ssh']) assert.ok(!Value.Check(TunnelParams, { id: 'sb-x', port }))
})

test('the token of a browser can have three names', () => {
  assert.equal(shellWsToken({ token: 'a', api_key: 'b' }), 'a')
  assert.equal(shellWsToken({ token: '', access_token: 'b' }), 'b')
  assert.equal(shellWsToken({ api_key: 'c' }), 'c')
  assert.equal(shellWsToken({}), undefined)
})

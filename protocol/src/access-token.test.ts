import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Value } from 'typebox/value'
import { AccessTokenSecretView, AccessTokenView, accessTokenHint, canIssueAccessToken } from './access-token.ts'
import { SANDBOX_STATUSES } from './sandbox.ts'

test('a hint shows the first and last four characters of the secret', () => {
  const token = 'skp_sb_abcdefghijklmnopqrstuvwxyz'

  const hint = accessTokenHint(token)

  assert.equal(hint, 'skp_sb_abcd...wxyz')
  const [head = '', tail = ''] = hint.split('...')
  assert.ok(token.startsWith(head) && token.endsWith(tail))
})

test('a token can be issued only while the sandbox exists', () => {
  assert.deepEqual(
    SANDBOX_STATUSES.filter((status) => !canIssueAccessToken(status)),
    ['creating', 'destroying', 'destroyed', 'failed'],
  )
})

test('without a token the view has one field, and only create and rotate return the token', () => {
  assert.ok(Value.Check(AccessTokenView, { enabled: false }))
  assert.ok(!Value.Check(AccessTokenView, { enabled: true, rotated_at: null }))
  assert.ok(
    Value.Check(AccessTokenSecretView, { token: 'skp_sb_x', enabled: true, created_at: '2026-01-02T03:04:05.006Z' }),
  )
})

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Value } from 'typebox/value'
import { newId } from './ids.ts'
import { NetworkAttachBody, NetworkCreateBody, NetworkDetailView } from './network.ts'

test('network names follow the rules of resource names', () => {
  assert.ok(Value.Check(NetworkCreateBody, { name: 'team-net' }))
  assert.ok(!Value.Check(NetworkCreateBody, { name: 'Team net' }))
  assert.ok(!Value.Check(NetworkCreateBody, {}))
  assert.ok(!Value.Check(NetworkAttachBody, { id: '' }))
})

test('a member can lack a name and an address, but they are never null', () => {
  const view = (member: object) => ({
    id: newId('network'),
    name: 'team-net',
    created_at: '2026-01-02T03:04:05.006Z',
    member_count: 1,
    members: [{ sandbox_id: newId('sandbox'), status: 'paused', ...member }],
  })

  assert.ok(Value.Check(NetworkDetailView, view({})))
  assert.ok(Value.Check(NetworkDetailView, view({ name: 'brave-otter', ip: '10.9.0.2' })))
  assert.ok(!Value.Check(NetworkDetailView, view({ ip: null })))
  assert.ok(!Value.Check(NetworkDetailView, view({ status: 'active' })))
})

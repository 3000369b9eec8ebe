import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Value } from 'typebox/value'
import {
  checkSandboxName,
  expectedStatus,
  isTerminal,
  SANDBOX_MOVES,
  SANDBOX_STATUSES,
  SandboxCreateBody,
  SandboxName,
  sandboxCan,
  TRANSITIONAL_STATUSES,
} from './index.ts'

test('every status except creating and forking, the initial ones, is reached by a move', () => {
  const reachable = new Set(Object.values(SANDBOX_MOVES).map((move) => move.to))

  const unreachable = SANDBOX_STATUSES.filter((status) => !reachable.has(status as never))

  assert.deepEqual(unreachable, ['creating', 'forking'])
})

test('no move leaves destroyed, and only a delete leaves failed', () => {
  const leaving = (status: string) =>
    Object.entries(SANDBOX_MOVES)
      .filter(([, move]) => (move.from as readonly string[]).includes(status))
      .map(([name]) => name)

  assert.deepEqual(leaving('destroyed'), [])
  assert.deepEqual(leaving('failed'), ['destroyWithoutVm'])
})

test('delete is allowed in every state that is not terminal and not already destroying', () => {
  for (const status of SANDBOX_STATUSES) {
    assert.equal(sandboxCan('destroy', status), !isTerminal(status) && status !== 'destroying', status)
  }
})

test('every transitional status has a move that ends it with the fence of its operation', () => {
  for (const status of TRANSITIONAL_STATUSES) {
    const ends = Object.values(SANDBOX_MOVES).filter(
      (move) => move.fence === 'ends' && (move.from as readonly string[]).includes(status),
    )
    assert.ok(ends.length > 0, status)
  }
})

test('the expected statuses of a move are named', () => {
  assert.equal(expectedStatus('resume'), 'paused or error')
})

test('a name is a DNS label in lower case', () => {
  for (const name of ['a', '0', 'brave-otter', 'a--b', 'a'.repeat(63)]) {
    assert.equal(checkSandboxName(name), undefined, name)
    assert.ok(Value.Check(SandboxName, name), name)
  }
  for (const name of ['', '-a', 'a-', 'A', 'a.b', 'a_b', 'a\n', 'é', 'a'.repeat(64)]) {
    assert.match(checkSandboxName(name) ?? '', /1 to 63 lower case/, name)
    assert.ok(!Value.Check(SandboxName, name), name)
  }
})

test('a create body can contain null for absent fields, and unknown fields', () => {
  const body = { shape: 's-1vcpu-1gb', name: null, egress: null, node_selector: {}, bandwidth_quota_bytes: 0 }
  const disk = { disk_id: 'data', mount_path: '/mnt/data' }

  assert.ok(Value.Check(SandboxCreateBody, { ...body, disks: [disk, { ...disk, sub_path: null }] }))
  assert.ok(!Value.Check(SandboxCreateBody, { ...body, bandwidth_quota_bytes: 1 }))
  assert.ok(!Value.Check(SandboxCreateBody, { ...body, envs: { 'not a name': 'x' } }))
  assert.ok(!Value.Check(SandboxCreateBody, { ...body, auto_pause_after_seconds: 59 }))
})

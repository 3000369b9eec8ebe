import assert from 'node:assert/strict'
import { test } from 'node:test'
import { checkKernel, checkNode, checkSystem, checkUser } from './platform.ts'

test('Linux on x86-64 or arm64 it is, nothing else', () => {
  assert.deepEqual(checkSystem('linux', 'x64'), { ok: true, detail: 'Linux on x86-64' })
  assert.deepEqual(checkSystem('linux', 'arm64'), { ok: true, detail: 'Linux on arm64' })
  assert.equal(checkSystem('linux', 'riscv64').ok, false)
  assert.equal(checkSystem('darwin', 'arm64').ok, false)
})

test('a kernel is judged by its number, whatever stands behind it', () => {
  assert.equal(checkKernel('6.1.0-31-cloud-amd64').ok, true)
  assert.equal(checkKernel('5.10.0').ok, true)
  assert.equal(checkKernel('5.4.0-generic').ok, false)
  assert.equal(checkKernel('strange').ok, false)
})

test('Node older than the tests run on is refused', () => {
  assert.equal(checkNode('26.10.0').ok, true)
  assert.equal(checkNode('24.21.0').ok, true)
  assert.equal(checkNode('20.20.2').ok, false)
})

test('an ordinary user is told what root adds', () => {
  const result = checkUser({ isRoot: false })

  assert.equal(result.ok, false)
  assert.match(result.detail, /network .*cgroups.*tools/)
  assert.deepEqual(checkUser({ isRoot: true }), { ok: true, detail: 'root' })
})

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { checkKernel, checkNode, checkSystem, checkUser } from './platform.ts'

test('only Linux on x86-64 or arm64 is supported', () => {
  assert.deepEqual(checkSystem('linux', 'x64'), { ok: true, detail: 'Linux on x86-64' })
  assert.deepEqual(checkSystem('linux', 'arm64'), { ok: true, detail: 'Linux on arm64' })
  assert.equal(checkSystem('linux', 'riscv64').ok, false)
  assert.equal(checkSystem('darwin', 'arm64').ok, false)
})

test('only the version number of the kernel matters, not its suffix', () => {
  assert.equal(checkKernel('6.1.0-31-cloud-amd64').ok, true)
  assert.equal(checkKernel('5.10.0').ok, true)
  assert.equal(checkKernel('5.4.0-generic').ok, false)
  assert.equal(checkKernel('strange').ok, false)
})

test('a Node that is too old fails the check', () => {
  assert.equal(checkNode('26.10.0').ok, true)
  assert.equal(checkNode('24.21.0').ok, true)
  assert.equal(checkNode('20.20.2').ok, false)
})

test('without root the check lists what root is needed for', () => {
  const result = checkUser({ isRoot: false })

  assert.equal(result.ok, false)
  assert.match(result.detail, /network .*cgroups.*tools/)
  assert.deepEqual(checkUser({ isRoot: true }), { ok: true, detail: 'root' })
})

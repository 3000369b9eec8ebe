import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { test } from 'node:test'
import { evaluateStage, probeKvm } from './probe.ts'

test('a stage that writes its number in time passes', () => {
  assert.equal(evaluateStage('A', { end: 'io', port: 0x10, value: 42, cpuMs: 0 }), 'passed')
  assert.equal(evaluateStage('B', { end: 'io', port: 0x10, value: 1_000_000, cpuMs: 2 }), 'passed')
})

test('a stage that writes a wrong number or port fails', () => {
  assert.match(
    evaluateStage('B', { end: 'io', port: 0x10, value: 42, cpuMs: 2 }),
    /wrote 42 to port 16 instead of 1000000/,
  )
  assert.match(evaluateStage('A', { end: 'io', port: 0x11, value: 42, cpuMs: 0 }), /to port 17/)
})

test('the right number after too much CPU time means that the guest is emulated', () => {
  const reason = evaluateStage('B', { end: 'io', port: 0x10, value: 1_000_000, cpuMs: 1429.3 })

  assert.equal(reason, 'stage B: a 64-bit guest is emulated: it took 1429 ms')
})

test('an exit is reported with its reason, suberror and address', () => {
  const reason = evaluateStage('B', { end: 'exit', exitReason: 17, suberror: 1, rip: 0x102d })

  assert.match(reason, /^stage B: a 64-bit guest does not run: exit reason 17 \(internal error\), suberror 1 at 0x102d/)
})

test('a halt without a number fails', () => {
  assert.match(evaluateStage('A', { end: 'exit', exitReason: 5, rip: 0x1005 }), /exit reason 5 \(halt\) at 0x1005/)
})

test('missing permission, other refusals and an unknown API version have different reasons', () => {
  assert.equal(evaluateStage('A', { end: 'refused', call: 'open', code: 'EACCES' }), 'no permission to open /dev/kvm')
  assert.equal(
    evaluateStage('A', { end: 'refused', call: 'KVM_CREATE_VM', code: 'EBUSY' }),
    'stage A: KVM_CREATE_VM was refused (EBUSY)',
  )
  assert.equal(evaluateStage('A', { end: 'version', version: 11 }), 'KVM API version 11 instead of 12')
})

test('on PVM, which passes stage A, KVM is not usable', async (t) => {
  if (!existsSync('/sys/module/kvm_pvm')) return t.skip('KVM is not PVM on this machine')
  if (process.getuid?.() !== 0) return t.skip('needs root to open /dev/kvm')

  const probe = await probeKvm()

  assert.equal(probe.usable, false)
  assert.match(probe.usable ? '' : probe.reason, /^stage B: .*exit reason 17 .*suberror 1/)
})

test('without the device, KVM is not usable', async (t) => {
  if (existsSync('/dev/kvm')) return t.skip('this machine has /dev/kvm')

  assert.deepEqual(await probeKvm(), { usable: false, reason: 'no /dev/kvm' })
})

test('an abort ends the probe with an error, not with a result', async (t) => {
  if (!existsSync('/dev/kvm') || process.arch !== 'x64') return t.skip('there is nothing to abort on this machine')

  await assert.rejects(probeKvm({ signal: AbortSignal.abort() }), /was aborted/)
})

test('a stage that exceeds its time limit is killed, and KVM is not usable', async (t) => {
  if (!existsSync('/dev/kvm') || process.arch !== 'x64') return t.skip('there is nothing to probe on this machine')

  const probe = await probeKvm({ stageLimitMs: 1 })

  assert.equal(probe.usable, false)
  assert.match(probe.usable ? '' : probe.reason, /^stage A: .* timed out after 1 ms$/)
})

import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { test } from 'node:test'
import { judgeStage, probeKvm } from './probe.ts'

test('a stage that writes its number in time has passed', () => {
  assert.equal(judgeStage('A', { end: 'io', port: 0x10, value: 42, cpuMs: 0 }), 'passed')
  assert.equal(judgeStage('B', { end: 'io', port: 0x10, value: 1_000_000, cpuMs: 2 }), 'passed')
})

test('a wrong number or port is a failure', () => {
  assert.match(
    judgeStage('B', { end: 'io', port: 0x10, value: 42, cpuMs: 2 }),
    /wrote 42 to port 16 instead of 1000000/,
  )
  assert.match(judgeStage('A', { end: 'io', port: 0x11, value: 42, cpuMs: 0 }), /to port 17/)
})

test('the right number after too much CPU time is an emulator', () => {
  const reason = judgeStage('B', { end: 'io', port: 0x10, value: 1_000_000, cpuMs: 1429.3 })

  assert.equal(reason, 'stage B: a 64-bit guest is emulated: it took 1429 ms')
})

test('an exit names its reason, suberror and place', () => {
  const reason = judgeStage('B', { end: 'exit', exitReason: 17, suberror: 1, rip: 0x102d })

  assert.match(reason, /^stage B: a 64-bit guest does not run: exit reason 17 \(internal error\), suberror 1 at 0x102d/)
})

test('a halt without a number is no success', () => {
  assert.match(judgeStage('A', { end: 'exit', exitReason: 5, rip: 0x1005 }), /exit reason 5 \(halt\) at 0x1005/)
})

test('no permission, another refusal and a strange API version are told apart', () => {
  assert.equal(judgeStage('A', { end: 'refused', call: 'open', code: 'EACCES' }), 'no permission to open /dev/kvm')
  assert.equal(
    judgeStage('A', { end: 'refused', call: 'KVM_CREATE_VM', code: 'EBUSY' }),
    'stage A: KVM_CREATE_VM was refused (EBUSY)',
  )
  assert.equal(judgeStage('A', { end: 'version', version: 11 }), 'KVM API version 11 instead of 12')
})

test('on PVM, which passes stage A, the real probe finds KVM not usable', async (t) => {
  if (!existsSync('/sys/module/kvm_pvm')) return t.skip('KVM is not PVM on this machine')
  if (process.getuid?.() !== 0) return t.skip('only root may be sure to open /dev/kvm')

  const probe = await probeKvm()

  assert.equal(probe.usable, false)
  assert.match(probe.usable ? '' : probe.reason, /^stage B: .*exit reason 17 .*suberror 1/)
})

test('without a device there is nothing to probe', async (t) => {
  if (existsSync('/dev/kvm')) return t.skip('this machine has /dev/kvm')

  assert.deepEqual(await probeKvm(), { usable: false, reason: 'no /dev/kvm' })
})

test('an abort ends the probe with an error, not with a verdict', async (t) => {
  if (!existsSync('/dev/kvm') || process.arch !== 'x64') return t.skip('there is nothing to abort on this machine')

  await assert.rejects(probeKvm({ signal: AbortSignal.abort() }), /was aborted/)
})

test('a stage that does not end in time is killed, and KVM is not usable', async (t) => {
  if (!existsSync('/dev/kvm') || process.arch !== 'x64') return t.skip('there is nothing to probe on this machine')

  const probe = await probeKvm({ stageLimitMs: 1 })

  assert.equal(probe.usable, false)
  assert.match(probe.usable ? '' : probe.reason, /^stage A: .* timed out after 1 ms$/)
})

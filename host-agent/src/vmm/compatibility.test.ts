import assert from 'node:assert/strict'
import { test } from 'node:test'
import { VMM } from '../vms/testing.ts'
import type { Machine } from './args.ts'
import { describeRequirements, findIncompatibility } from './compatibility.ts'
import { HARDWARE_VERSION } from './hardware.ts'

const machine: Machine = {
  binary: 'qemu-system-x86_64',
  version: '8.2.0',
  type: 'pc-q35-8.2',
  hardware: HARDWARE_VERSION,
  accel: 'tcg',
  cpu: 'max',
  readOnlyRam: true,
}

test('a VM that was started before hardware had versions is saved as version 1, and this host can run it', () => {
  const needs = describeRequirements({ machine }, VMM)

  assert.equal(VMM.hardware, undefined)
  assert.equal(needs.machine.hardware, 1)
  assert.equal(findIncompatibility({ machine }, needs), undefined)
  const { hardware: _, ...unversioned } = needs.machine
  assert.equal(findIncompatibility({ machine }, { ...needs, machine: unversioned }), undefined)
})

test('a VM is saved with the hardware version that it runs with', () => {
  const needs = describeRequirements({ machine }, { ...VMM, hardware: HARDWARE_VERSION })
  assert.equal(needs.machine.hardware, HARDWARE_VERSION)
  assert.equal(findIncompatibility({ machine }, needs), undefined)
})

test('a snapshot of a newer hardware version is refused, not tried', () => {
  const needs = describeRequirements({ machine }, { ...VMM, hardware: HARDWARE_VERSION })
  const newer = { ...needs, machine: { ...needs.machine, hardware: HARDWARE_VERSION + 1 } }
  assert.equal(findIncompatibility({ machine }, newer), 'its hardware version is 3, and this host knows 2')
})

test('a snapshot of another QEMU, accelerator or processor is refused', () => {
  const needs = describeRequirements({ machine }, VMM)
  const saved = (other: Partial<typeof needs.machine>) =>
    findIncompatibility({ machine }, { ...needs, machine: { ...needs.machine, ...other } })
  assert.equal(saved({ version: '8.1.5' }), undefined)
  assert.equal(saved({ version: '10.0.0' }), 'it was saved by QEMU 10.0.0, and this host has 8.2.0')
  assert.equal(saved({ accel: 'kvm' }), 'it was saved under kvm, and this host runs tcg')
  assert.equal(saved({ cpu: 'host' }), 'its processor is host, and this host offers max')
})

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { FDS, type Machine, renderArgs, renderKernelCommandLine } from './args.ts'

const machine: Machine = {
  binary: 'qemu-system-x86_64',
  version: '7.2.22',
  type: 'pc-q35-7.2',
  hardware: 2,
  accel: 'tcg',
  cpu: 'max',
  readOnlyRam: false,
}
const common = { machine, shape: { vcpu: 2, mem_mib: 512 }, socketDir: '/run/x', mtu: 1400, layers: 0 }
const boot = renderArgs({ ...common, start: 'base' })
const clone = renderArgs({ ...common, start: 'state' })

/** The values that follow a flag, in order. */
const valuesOf = (args: string[], flag: string) => args.filter((_, i) => args[i - 1] === flag)

test('a clone has exactly the devices of its base, in the same order', () => {
  assert.deepEqual(valuesOf(clone, '-device'), valuesOf(boot, '-device'))
  for (const flag of ['-machine', '-cpu', '-m', '-smp', '-accel', '-netdev', '-mon']) {
    assert.deepEqual(valuesOf(clone, flag), valuesOf(boot, flag), flag)
  }
})

test('the base writes its memory into the file, a clone maps it privately', () => {
  assert.deepEqual(valuesOf(boot, '-object'), [
    `memory-backend-file,id=ram0,size=512M,mem-path=/proc/self/fd/${FDS.ram},share=on`,
  ])
  assert.deepEqual(valuesOf(clone, '-object'), [
    `memory-backend-file,id=ram0,size=512M,mem-path=/proc/self/fd/${FDS.ram},share=off`,
  ])
  const newer = renderArgs({ ...common, machine: { ...machine, readOnlyRam: true }, start: 'state' })
  assert.match(valuesOf(newer, '-object')[0]!, /share=off,readonly=on,rom=off$/)
})

test('only the newest disk of the chain is writable', () => {
  const nodes = valuesOf(clone, '-blockdev').map((text) => JSON.parse(text))

  assert.deepEqual(
    nodes.map((node) => [node['node-name'], node['read-only'] ?? false, node.backing]),
    [
      ['image', true, undefined],
      ['base', true, 'image'],
      ['d0', false, 'base'],
    ],
  )
  assert.deepEqual(
    valuesOf(boot, '-blockdev').map((text) => JSON.parse(text)['node-name']),
    ['image', 'd0'],
  )
})

test('saved layers are between the base and the disk, oldest first', () => {
  const nodes = valuesOf(renderArgs({ ...common, start: 'state', layers: 2 }), '-blockdev').map((text) =>
    JSON.parse(text),
  )
  assert.deepEqual(
    nodes.map((node) => [node['node-name'], node.backing, node.file.filename]),
    [
      ['image', undefined, `/dev/fdset/${FDS.image}`],
      ['base', 'image', `/dev/fdset/${FDS.baseDisk}`],
      ['layer0', 'base', `/dev/fdset/${FDS.firstLayer}`],
      ['layer1', 'layer0', `/dev/fdset/${FDS.firstLayer + 1}`],
      ['d0', 'layer1', `/proc/self/fd/${FDS.work}/disk-0.qcow2`],
    ],
  )
})

test('a boot from a used disk starts with paused CPUs', () => {
  const again = renderArgs({ ...common, start: 'disk', layers: 1 })
  assert.ok(again.includes('-S'))
  assert.equal(valuesOf(again, '-kernel').length, 1)
  assert.match(valuesOf(again, '-object')[0]!, /share=off/)
})

test('QEMU is confined and does not restart a guest that reboots', () => {
  for (const args of [boot, clone]) {
    assert.ok(args.includes('-no-reboot'))
    assert.deepEqual(valuesOf(args, '-sandbox'), [
      'on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny',
    ])
  }
})

test('a clone has no kernel and waits for its state', () => {
  assert.deepEqual(valuesOf(clone, '-kernel'), [])
  assert.deepEqual(valuesOf(clone, '-incoming'), ['defer'])
  assert.deepEqual(valuesOf(boot, '-incoming'), [])
})

test('hardware version 1 is the machine of snapshots that do not name a version', () => {
  const first = renderArgs({ ...common, machine: { ...machine, hardware: 1 }, start: 'state' })
  assert.deepEqual(valuesOf(first, '-machine'), ['pc-q35-7.2,hpet=off,memory-backend=ram0'])
  assert.deepEqual(valuesOf(first, '-device'), valuesOf(clone, '-device'))
})

test('hardware version 2 has no devices that guests do not need, and a PIT only under emulation', () => {
  const off = 'hpet=off,sata=off,smbus=off,i8042=off,vmport=off,smm=off,usb=off,mem-merge=off'
  assert.deepEqual(valuesOf(boot, '-machine'), [`pc-q35-7.2,${off},memory-backend=ram0`])
  const kvm = renderArgs({ ...common, machine: { ...machine, accel: 'kvm', cpu: 'host' }, start: 'state' })
  assert.deepEqual(valuesOf(kvm, '-machine'), [`pc-q35-7.2,${off},pit=off,memory-backend=ram0`])
})

test('a hardware version that is not known is refused', () => {
  assert.throws(() => renderArgs({ ...common, machine: { ...machine, hardware: 9 }, start: 'state' }), /version 9/)
})

test('kernel options for emulation are not used under KVM', () => {
  assert.match(renderKernelCommandLine('tcg', 1400), /norandmaps/)
  assert.doesNotMatch(renderKernelCommandLine('kvm', 1500), /norandmaps|tsc=|lpj=/)
  assert.match(renderKernelCommandLine('kvm', 1500), /panic=-1 reboot=t warren\.mtu=1500/)
})

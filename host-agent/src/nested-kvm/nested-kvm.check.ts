/**
 * `npm run test:kvm`: tests the use of KVM on any machine, inside an emulated VM that has KVM. Not a part of `npm test`,
 * because it takes a minute or two and much memory, and the code it tests rarely changes.
 */
import assert from 'node:assert/strict'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { type BareVm, bootBareVm } from '../testing/bare-vm.ts'
import { INSIDE, type InsideResult, KVM_GROUP, makeOuter, NODE } from './outer.ts'

const RESULT = '/root/result.json'
const LIMIT_MS = 10 * 60_000
const OUTER = { vcpu: 2, mem_mib: 2048 }
const noRoot = process.getuid?.() === 0 ? false : 'needs root: it unpacks packages with their owners'

test('with a /dev/kvm of mode 0660 a jailed QEMU boots a VM, saves it and runs two clones at the same time', {
  skip: noRoot,
  timeout: LIMIT_MS,
}, async (t) => {
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-kvm-'))
  t.after(() => rm(folder, { recursive: true, force: true }))
  const outer = await bootBareVm(await makeOuter(folder), OUTER)
  t.after(outer.stop)

  await outer.exec(NODE, [INSIDE, RESULT])

  const result: InsideResult & { failed?: string } = JSON.parse(await readFile(outer, RESULT))
  assert.equal(result.failed, undefined)
  assert.equal(result.why, '/dev/kvm runs a 64-bit guest')
  assert.deepEqual([result.machine.accel, result.machine.cpu], ['kvm', 'host'])
  assert.deepEqual(
    result.clones.map(({ kvm }) => kvm),
    [true, true],
  )
  for (const { clocksource, groups, capabilities, seccomp } of result.clones) {
    assert.match(clocksource, /^(tsc|kvm-clock)$/)
    assert.deepEqual(groups, [KVM_GROUP])
    assert.match(capabilities, /^0+$/)
    assert.equal(seccomp, '2')
  }
  const uids = new Set(result.clones.map(({ uid }) => uid))
  assert.ok(uids.size === 2 && !uids.has(0), [...uids].join())
})

async function readFile({ channel }: BareVm, file: string): Promise<string> {
  const stream = channel.session.request({ ':method': 'GET', ':path': `/files?path=${encodeURIComponent(file)}` })
  return Buffer.concat(await stream.toArray()).toString()
}

/** The QEMU process of a sandbox runs in a jail. What the jail withstands is tested in host-agent/src/vmm/jail. */
import assert from 'node:assert/strict'
import { readdirSync, readFileSync, readlinkSync } from 'node:fs'
import { describe, test } from 'node:test'
import { listVmms } from './support/instance.ts'
import { createSandbox } from './support/sandboxes.ts'
import { cannotRunVms, startUnlessSkipped, startVmInstance, VM_STORIES_LIMIT_MS } from './support/vm-instance.ts'

const warren = await startUnlessSkipped(cannotRunVms, () => startVmInstance())

describe('the QEMU process of a sandbox', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  test('has no privileges, no way to gain any, and shares nothing with the machine', async () => {
    await createSandbox(warren, {})
    const vmms = listVmms(warren.instance.dataDir)

    assert.ok(vmms.length > 0)
    for (const pid of vmms) {
      const status = new Map(
        readFileSync(`/proc/${pid}/status`, 'utf8')
          .split('\n')
          .map((line) => line.split(/:\s*/) as [string, string]),
      )
      for (const set of ['CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb']) assert.match(status.get(set)!, /^0+$/, set)
      assert.equal(status.get('NoNewPrivs'), '1')
      assert.equal(status.get('Seccomp'), '2')
      assert.match(status.get('NSpid')!, /^\d+\t1$/)
      const root = readdirSync(`/proc/${pid}/root`).sort()
      assert.deepEqual(root, ['dev', 'lib', 'lib64', 'proc', 'sockets', 'usr', 'work'])
      for (const name of ['net', 'mnt', 'pid', 'ipc', 'uts', 'cgroup']) {
        assert.notEqual(readlinkSync(`/proc/${pid}/ns/${name}`), readlinkSync(`/proc/self/ns/${name}`), name)
      }
      assert.deepEqual(
        readFileSync(`/proc/${pid}/net/dev`, 'utf8')
          .match(/^ *\w+(?=:)/gm)
          ?.map((name) => name.trim()),
        ['lo'],
      )
    }
    const uids = vmms.map((pid) => /^Uid:\t(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))![1])
    assert.equal(new Set(uids).size, vmms.length)
    assert.ok(!uids.includes('0'))
  })
})

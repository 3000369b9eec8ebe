/** The machine that a guest sees (host-agent/src/vmm/hardware.ts). That older machines stay as they were: upgrade.test.ts. */
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { passTime } from '@warren/kit/testing/pass-time'
import { until } from '@warren/kit/testing/until'
import { createSandbox, getSandbox, request, resumeSandbox, runShell } from './support/sandboxes.ts'
import {
  accelerationOf,
  cannotRunVms,
  startUnlessSkipped,
  startVmInstance,
  VM_STORIES_LIMIT_MS,
} from './support/vm-instance.ts'

/** Class, vendor and device: host bridge, disk, serial ports, network card, two empty ports, and the bridge to the serial console. */
const PCI_DEVICES = [
  '0x060000 0x8086 0x29c0',
  '0x010000 0x1af4 0x1001',
  '0x078000 0x1af4 0x1003',
  '0x020000 0x1af4 0x1000',
  '0x060400 0x1b36 0x000c',
  '0x060400 0x1b36 0x000c',
  '0x060100 0x8086 0x2918',
]
/** Enough that two seconds of the machine's business do not hide a clock that is wrong by a fifth. */
const CLOCK_MS = 5_000
const CLOCK_ERROR = 0.05

const warren = await startUnlessSkipped(cannotRunVms, () => startVmInstance())
const { id } = await startUnlessSkipped(cannotRunVms, () => createSandbox(warren))

describe('the machine of a guest', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  test('has the devices that it needs and no others', async () => {
    const list = 'for d in /sys/bus/pci/devices/*; do echo $(cat $d/class $d/vendor $d/device); done'
    assert.deepEqual((await runShell(warren, id, list)).split('\n'), PCI_DEVICES)
    assert.equal(await runShell(warren, id, 'grep -c i8042 /proc/interrupts || true'), '0')
    assert.equal(await runShell(warren, id, 'ls /sys/bus/serio/devices 2>/dev/null || true'), '') // Keyboard and mouse.
  })

  test('is emulated only after the start has warned that emulation is not a security boundary', () => {
    const warning = /guests are emulated \(TCG\).*not a security boundary/
    const isEmulated = accelerationOf(warren, id) === 'tcg'
    assert.equal(warning.test(warren.instance.output()), isEmulated)
  })

  test('has a clock as fast as that of the host', async () => {
    const readClock = async () => {
      const before = performance.now()
      const guestMs = Number(await runShell(warren, id, 'cut -d" " -f1 /proc/uptime')) * 1_000
      return { before, guestMs, after: performance.now() }
    }

    const first = await readClock()
    await passTime(CLOCK_MS, 'the clock of the guest is compared over it')
    const last = await readClock()

    const guestMs = last.guestMs - first.guestMs
    const [leastMs, mostMs] = [last.before - first.after, last.after - first.before]
    const within = guestMs > leastMs * (1 - CLOCK_ERROR) && guestMs < mostMs * (1 + CLOCK_ERROR)
    assert.ok(within, `${guestMs} ms in the guest, ${leastMs} to ${mostMs} ms on the host`)
  })

  for (const [what, letter] of [
    ['is switched off', 'o'],
    ['is rebooted', 'b'],
  ]) {
    test(`ends when it ${what} from inside, and boots from its disk`, async () => {
      const written = await runShell(warren, id, `date +%N | tee /root/written; sync`)

      const args = ['-c', `echo 1 >/proc/sys/kernel/sysrq; echo ${letter} >/proc/sysrq-trigger`]
      await request(warren, 'POST', `/sandboxes/${id}/exec`, { cmd: 'sh', args }) // Its guest may end before the command.
      await until(async () => (await getSandbox(warren, id)).status === 'error', 'the end of the guest is noticed')
      await resumeSandbox(warren, id)

      assert.equal(await runShell(warren, id, 'cat /root/written'), written)
    })
  }
})

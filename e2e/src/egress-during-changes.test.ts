/**
 * There is no open moment: a program in a real guest sends without a pause while its rules change, and while it is
 * created, paused, resumed and forked, and the host agent killed. Nothing that is not allowed ever arrives.
 */
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { describe, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { getHostAgentPid, kill } from './support/instance.ts'
import {
  EVIL,
  Internet,
  moveToIsolatedMachine,
  PUBLIC_HOST,
  RULED,
  runCommand,
  UPLINK,
} from './support/isolated-machine.ts'
import {
  createSandbox,
  destroySandbox,
  forkSandbox,
  pauseSandbox,
  request,
  requestOk,
  resumeSandbox,
  runShell,
} from './support/sandboxes.ts'
import { cannotRunVms, startVmInstance, VM_STORIES_LIMIT_MS } from './support/vm-instance.ts'

if (!cannotRunVms) moveToIsolatedMachine()
const internet = cannotRunVms ? (undefined as never) : await Internet.start()
const warren = cannotRunVms ? (undefined as never) : await startVmInstance()

const GOOD = RULED[0]
const NARROW = { egress: [GOOD] }
const SENDER = readFileSync(path.join(import.meta.dirname, 'support/packet-sender.pl'), 'utf8')
/** Connects to port 9000, which ticks for as long as it can, and writes a byte for each that came. */
const LISTENER = `use IO::Socket::INET; $s = IO::Socket::INET->new("$ARGV[0]:9000") or die; open F, ">", "/tmp/$ARGV[1]";
while (sysread $s, $_, 65536) { syswrite F, "." }`
const MANY = 50

const startSender = (id: string) =>
  requestOk(warren, 'POST', `/sandboxes/${id}/processes`, {
    cmd: 'perl',
    args: ['-e', SENDER, GOOD, PUBLIC_HOST, EVIL],
  })

const isGood = (one: string) => /^good-\d+ from /.test(one)
const KINDS = [/^evil-\d+ from /, /^asked q-\d+\.evil\.example /, /^http \S+ as evil\.example$/]

/** How much has come, when nothing else is on its way: two looks at it agree. */
async function settled(): Promise<number> {
  for (let count = (await internet.seen()).length; ; ) {
    const more = (await internet.seen(count)).length
    if (more === 0) return count
    count += more
  }
}

const othersSince = async (mark: number) => (await internet.seen(mark)).filter((one) => !isGood(one))

const untilMoreGood = (mark: number) =>
  until(async () => (await internet.seen(mark)).filter(isGood).length >= MANY, 'many allowed datagrams arrive')

const untilEvil = (mark: number) =>
  until(async () => {
    const seen = await internet.seen(mark)
    return KINDS.every((kind) => seen.some((one) => kind.test(one)))
  }, 'what is not allowed later arrives')

describe('no open moment', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  test('of sandboxes created with an empty allowance no packet leaves, from their first instruction on', async () => {
    runCommand(`nft add table ip watch { chain out { type filter hook postrouting priority 400; } ; }`)
    runCommand(`nft add rule ip watch out oifname ${UPLINK.name} counter`)
    const left = () => Number(/packets (\d+)/.exec(runCommand('nft list table ip watch'))![1])
    const before = left()

    const ids = (await Promise.all([1, 2, 3].map(() => createSandbox(warren, { egress: ['none'] })))).map(
      ({ id }) => id,
    )
    for (const id of ids) await startSender(id)
    for (const id of ids) {
      const refused = async () => {
        const { decisions } = await requestOk(warren, 'GET', `/sandboxes/${id}/egress/decisions`)
        return decisions as { destination: string; count: number }[]
      }
      await until(
        async () => (await refused()).some(({ destination, count }) => destination === GOOD && count >= MANY),
        'much is refused',
      )
    }

    assert.equal(left(), before)
    for (const id of ids) await destroySandbox(warren, id)
  })

  test('rules that were narrowed during a pause hold from the first packet after the resume', async () => {
    const { id } = await createSandbox(warren)
    await startSender(id)
    await untilEvil(await settled())

    for (const killed of [false, true]) {
      await pauseSandbox(warren, id)
      // Without its host agent the body that stood by is gone as well: it is made again from what was saved.
      if (killed) kill(await getHostAgentPid(warren.instance.dataDir))
      await requestOk(warren, 'PUT', `/sandboxes/${id}/egress`, NARROW)
      const mark = await settled()
      await resumeSandbox(warren, id)

      await untilMoreGood(mark)
      assert.deepEqual(await othersSince(mark), [])
      await requestOk(warren, 'PUT', `/sandboxes/${id}/egress`, { egress: ['*'] })
      await untilEvil(mark)
    }
    await destroySandbox(warren, id)
  })

  test('a fork with a narrower list never sends what its source may, also when the host agent is killed', async () => {
    const { id } = await createSandbox(warren)
    await startSender(id)
    await untilEvil(await settled())
    await pauseSandbox(warren, id)
    const mark = await settled()

    const child = await forkSandbox(warren, id, NARROW)
    await untilMoreGood(mark)
    const others = await othersSince(mark)
    const running = (await internet.seen()).length
    kill(await getHostAgentPid(warren.instance.dataDir))
    await untilMoreGood(running)
    const decisions = () => request(warren, 'GET', `/sandboxes/${child.id}/egress/decisions`)
    await until(async () => (await decisions()).status === 200, 'the next host agent has it')
    await untilMoreGood((await internet.seen()).length)

    assert.deepEqual(others, [])
    assert.deepEqual(await othersSince(mark), [])
    for (const one of [child.id, id]) await destroySandbox(warren, one)
  })

  test('a list that is narrowed cuts what is open, both ways, from the answer on, and nothing else', async () => {
    const { id } = await createSandbox(warren)
    await startSender(id)
    for (const [name, address] of [['kept', GOOD] as const, ['gone', PUBLIC_HOST] as const]) {
      await requestOk(warren, 'POST', `/sandboxes/${id}/processes`, {
        cmd: 'perl',
        args: ['-e', LISTENER, address, name],
      })
    }
    const ticks = async () =>
      (await runShell(warren, id, 'cat /tmp/kept | wc -c; cat /tmp/gone | wc -c')).split('\n').map(Number) as [
        number,
        number,
      ]
    await untilEvil(await settled())
    await until(async () => (await ticks()).every((count) => count > 0), 'both tick')

    await requestOk(warren, 'PUT', `/sandboxes/${id}/egress`, NARROW)
    // What was on its way when it was answered has arrived when more of what is allowed has.
    await untilMoreGood((await internet.seen()).length)
    const mark = (await internet.seen()).length
    const [kept, gone] = await ticks()
    await untilMoreGood(mark)
    await until(async () => (await ticks())[0] > kept + MANY, 'what is allowed still ticks')

    assert.deepEqual(await othersSince(mark), [])
    assert.equal((await ticks())[1], gone)
    await destroySandbox(warren, id)
  })
})

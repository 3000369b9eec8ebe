/**
 * There is no moment without rules: a program in a real guest sends all the time while its rules change, while the
 * sandbox is created, paused, resumed and forked, and while the host agent is killed. Only allowed traffic arrives.
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
import { cannotRunVms, startUnlessSkipped, startVmInstance, VM_STORIES_LIMIT_MS } from './support/vm-instance.ts'

if (!cannotRunVms) moveToIsolatedMachine()
const internet = await startUnlessSkipped(cannotRunVms, () => Internet.start())
const warren = await startUnlessSkipped(cannotRunVms, () => startVmInstance())

const GOOD = RULED[0]
const NARROW = { egress: [GOOD] }
const SENDER = readFileSync(path.join(import.meta.dirname, 'support/packet-sender.pl'), 'utf8')
/** Connects to port 9000, which sends a byte from time to time, and writes each byte to a file. */
const LISTENER = `use IO::Socket::INET; $s = IO::Socket::INET->new("$ARGV[0]:9000") or die; open F, ">", "/tmp/$ARGV[1]";
while (sysread $s, $_, 65536) { syswrite F, "." }`
const MANY = 50
const SETTLE_LIMIT_MS = 60_000

const startSender = (id: string) =>
  requestOk(warren, 'POST', `/sandboxes/${id}/processes`, {
    cmd: 'perl',
    args: ['-e', SENDER, GOOD, PUBLIC_HOST, EVIL],
  })

const isGood = (one: string) => /^good-\d+ from /.test(one)
const FORBIDDEN_KINDS = [/^evil-\d+ from /, /^queried q-\d+\.evil\.example /, /^http \S+ as evil\.example$/]

/**
 * How many entries the internet has received, once two reads agree. The reads follow each other immediately, because a
 * sender that runs meanwhile adds an entry every few milliseconds.
 */
async function countSettled(): Promise<number> {
  let count = (await internet.listReceived()).length
  for (const deadline = Date.now() + SETTLE_LIMIT_MS; Date.now() < deadline; ) {
    const more = (await internet.listReceived(count)).length
    if (more === 0) return count
    count += more
  }
  throw new Error(`the internet still received packets after ${SETTLE_LIMIT_MS} ms`)
}

const listForbiddenSince = async (mark: number) => (await internet.listReceived(mark)).filter((one) => !isGood(one))

const waitForGood = (mark: number) =>
  until(async () => (await internet.listReceived(mark)).filter(isGood).length >= MANY, 'many allowed datagrams arrive')

const waitForEvil = (mark: number) =>
  until(async () => {
    const seen = await internet.listReceived(mark)
    return FORBIDDEN_KINDS.every((kind) => seen.some((one) => kind.test(one)))
  }, 'the traffic that is forbidden later arrives')

describe('egress rules hold at every moment', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  test('no packet ever leaves a sandbox that is created with no allowed destination', async () => {
    runCommand(`nft add table ip watch { chain out { type filter hook postrouting priority 400; } ; }`)
    runCommand(`nft add rule ip watch out oifname ${UPLINK.name} counter`)
    const countLeft = () => Number(/packets (\d+)/.exec(runCommand('nft list table ip watch'))![1])
    const before = countLeft()

    const ids = (await Promise.all([1, 2, 3].map(() => createSandbox(warren, { egress: ['none'] })))).map(
      ({ id }) => id,
    )
    for (const id of ids) await startSender(id)
    for (const id of ids) {
      const listRefused = async () => {
        const { decisions } = await requestOk(warren, 'GET', `/sandboxes/${id}/egress/decisions`)
        return decisions as { destination: string; count: number }[]
      }
      await until(
        async () => (await listRefused()).some(({ destination, count }) => destination === GOOD && count >= MANY),
        'many datagrams are refused',
      )
    }

    assert.equal(countLeft(), before)
    for (const id of ids) await destroySandbox(warren, id)
  })

  test('rules narrowed during a pause hold from the first packet after the resume', async () => {
    const { id } = await createSandbox(warren)
    await startSender(id)
    await waitForEvil(await countSettled())

    for (const killed of [false, true]) {
      await pauseSandbox(warren, id)
      // With the host agent the standby VMM is lost too, so the VM is restored from the saved files.
      if (killed) kill(await getHostAgentPid(warren.instance.dataDir))
      await requestOk(warren, 'PUT', `/sandboxes/${id}/egress`, NARROW)
      const mark = await countSettled()
      await resumeSandbox(warren, id)

      await waitForGood(mark)
      assert.deepEqual(await listForbiddenSince(mark), [])
      await requestOk(warren, 'PUT', `/sandboxes/${id}/egress`, { egress: ['*'] })
      await waitForEvil(mark)
    }
    await destroySandbox(warren, id)
  })

  test('a fork with narrower rules never sends what its source may, also when the host agent is killed', async () => {
    const { id } = await createSandbox(warren)
    await startSender(id)
    await waitForEvil(await countSettled())
    await pauseSandbox(warren, id)
    const mark = await countSettled()

    const child = await forkSandbox(warren, id, NARROW)
    await waitForGood(mark)
    const others = await listForbiddenSince(mark)
    const running = (await internet.listReceived()).length
    kill(await getHostAgentPid(warren.instance.dataDir))
    await waitForGood(running)
    const decisions = () => request(warren, 'GET', `/sandboxes/${child.id}/egress/decisions`)
    await until(async () => (await decisions()).status === 200, 'the new host agent has adopted it')
    await waitForGood((await internet.listReceived()).length)

    assert.deepEqual(others, [])
    assert.deepEqual(await listForbiddenSince(mark), [])
    for (const one of [child.id, id]) await destroySandbox(warren, one)
  })

  test('narrowing the rules drops forbidden flows, in both directions, from the response on, and no others', async () => {
    const { id } = await createSandbox(warren)
    await startSender(id)
    for (const [name, address] of [['allowed', GOOD] as const, ['forbidden', PUBLIC_HOST] as const]) {
      await requestOk(warren, 'POST', `/sandboxes/${id}/processes`, {
        cmd: 'perl',
        args: ['-e', LISTENER, address, name],
      })
    }
    const countBytes = async () =>
      (await runShell(warren, id, 'cat /tmp/allowed | wc -c; cat /tmp/forbidden | wc -c')).split('\n').map(Number) as [
        number,
        number,
      ]
    await waitForEvil(await countSettled())
    await until(async () => (await countBytes()).every((count) => count > 0), 'both flows receive bytes')

    await requestOk(warren, 'PUT', `/sandboxes/${id}/egress`, NARROW)
    // Packets that were in flight at the response have arrived once more allowed ones have.
    await waitForGood((await internet.listReceived()).length)
    const mark = (await internet.listReceived()).length
    const [allowed, forbidden] = await countBytes()
    await waitForGood(mark)
    await until(async () => (await countBytes())[0] > allowed + MANY, 'the allowed flow still receives bytes')

    assert.deepEqual(await listForbiddenSince(mark), [])
    assert.equal((await countBytes())[1], forbidden)
    await destroySandbox(warren, id)
  })
})

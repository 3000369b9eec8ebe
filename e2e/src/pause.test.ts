/** Pause, resume and fork lose nothing, as shown by a writer that detects every missing byte. */
import assert from 'node:assert/strict'
import { readdirSync, readlinkSync } from 'node:fs'
import { describe, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { checkDisk } from './support/check-disk.ts'
import { checkChain, checkChainOnDisk, startChain } from './support/hash-chain.ts'
import { kill, killServices } from './support/instance.ts'
import {
  createSandbox,
  destroySandbox,
  forkSandbox,
  getSandbox,
  pauseSandbox,
  request,
  requestOk,
  resumeSandbox,
  runShell,
  waitForStatus,
} from './support/sandboxes.ts'
import {
  cannotRunVms,
  findQemuPid,
  SOAK,
  startUnlessSkipped,
  startVmInstance,
  VM_STORIES_LIMIT_MS,
  type VmInstance,
} from './support/vm-instance.ts'

/** Memory for one standby VMM: of two sandboxes paused in turn, one is resumed from disk and one in place. */
const warren = await startUnlessSkipped(cannotRunVms, () =>
  startVmInstance({ WARREN_STANDBY_MIB: '90', WARREN_POOL_MIB: '0' }),
)
const CYCLES = Number(process.env.WARREN_TEST_PAUSES ?? (SOAK ? 1_000 : 200))

describe('pause and resume', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  test(`a hash chain survives ${CYCLES} pauses at random moments, on disk and in memory`, {
    timeout: VM_STORIES_LIMIT_MS,
  }, async () => {
    const [one, two] = [await createSandbox(warren), await createSandbox(warren)]
    const seen = new Map<string, number>()
    const processes = new Set<number | undefined>()
    for (const { id } of [one, two]) await startChain(warren, id)

    for (let cycle = 0; cycle < CYCLES / 2; cycle++) {
      for (const { id } of [one, two]) {
        seen.set(id, await checkChain(warren, id, seen.get(id) ?? 0))
        await pauseSandbox(warren, id)
      }
      if (cycle % 20 === 7) await checkDisk(warren, one.id)
      for (const { id } of [one, two]) await resumeSandbox(warren, id)
      processes.add(findQemuPid(warren, two.id))
      if (cycle % 10 === 5) for (const { id } of [one, two]) await checkChainOnDisk(warren, id, seen.get(id)!)
    }

    // The one resumed in place keeps its QEMU process for many cycles, and its open disk layers do not pile up.
    assert.ok(processes.size <= Math.ceil(CYCLES / 40), `${processes.size} processes`)
    assert.ok(countOpenLayers(findQemuPid(warren, two.id)!) < 24)
    for (const { id } of [one, two]) {
      const last = await checkChainOnDisk(warren, id, seen.get(id)!)
      await until(async () => (await checkChain(warren, id, last)) > last, 'it continues to write')
      assert.equal(await countPauses(warren, id), CYCLES / 2)
      await destroySandbox(warren, id)
    }
  })

  test('processes, open files and memory survive a pause, and the clock is right', async () => {
    const { id } = await createSandbox(warren, { name: 'sleeper' })
    await runShell(
      warren,
      id,
      'echo saved > /dev/shm/memory; exec 3>/root/open; (sleep 1000; echo late >&3) >/dev/null 2>&1 & echo $! > /root/pid',
    )

    const paused = await pauseSandbox(warren, id)
    await resumeSandbox(warren, id)

    assert.match(paused.status_reason ?? '', /./)
    assert.equal(
      await runShell(warren, id, 'cat /dev/shm/memory; kill -0 $(cat /root/pid) && echo alive; hostname'),
      'saved\nalive\nsleeper',
    )
    const before = Date.now()
    const guest = Number(await runShell(warren, id, 'date +%s%3N'))
    assert.ok(guest > before - 100 && guest < Date.now() + 100, `${guest} against ${before}`)
    await destroySandbox(warren, id)
  })

  test('an operation that the status does not allow is rejected with the reason', async () => {
    const { id } = await createSandbox(warren)
    assert.equal((await request(warren, 'POST', `/sandboxes/${id}/resume`)).status, 409)
    assert.equal((await request(warren, 'POST', `/sandboxes/${id}/fork`)).status, 409)
    await pauseSandbox(warren, id)

    const again = await request(warren, 'POST', `/sandboxes/${id}/pause`)
    const exec = await request(warren, 'POST', `/sandboxes/${id}/exec`, { cmd: 'true' })

    assert.deepEqual([again.status, again.data.message], [409, 'sandbox is paused, expected running'])
    assert.deepEqual([exec.status, exec.data.code], [404, 'sandbox_not_running'])
    await destroySandbox(warren, id)
  })

  test('a chain of ten forks keeps the data, in whatever order they are deleted', async () => {
    const root = await createSandbox(warren)
    await startChain(warren, root.id)
    const alive = [root.id]
    let [newest, seen] = [root.id, 0]

    for (let depth = 0; depth < 10; depth++) {
      seen = await checkChain(warren, newest, seen)
      await pauseSandbox(warren, newest)
      newest = (await forkSandbox(warren, newest)).id
      alive.push(newest)
      seen = await checkChainOnDisk(warren, newest, seen)
      // Any except the newest.
      if (depth % 2 === 1) await destroySandbox(warren, alive.splice((depth * 7) % (alive.length - 1), 1)[0]!)
    }

    for (const id of alive.slice(0, -1)) await destroySandbox(warren, id)
    await pauseSandbox(warren, newest)
    await checkDisk(warren, newest)
    await resumeSandbox(warren, newest)
    await checkChainOnDisk(warren, newest, seen)
    await destroySandbox(warren, newest)
  })

  test('a live fork leaves its source running, and ten forks at once have separate identities', async () => {
    const source = await createSandbox(warren, { envs: { COLOUR: 'red' } })
    await startChain(warren, source.id)
    const body = { live: true, count: 10, start_paused: true }
    const children = (await requestOk(warren, 'POST', `/sandboxes/${source.id}/fork`, body)) as unknown as {
      id: string
    }[]
    assert.equal(children.length, 10)

    const facts =
      'cat /proc/sys/kernel/random/uuid /etc/machine-id; hostname; head -c 16 /dev/urandom | od -An -tx8; mktemp -u'
    const answers: string[][] = [(await runShell(warren, source.id, facts)).split('\n')]
    for (const { id } of children) {
      await waitForStatus(warren, id, 'paused')
      await resumeSandbox(warren, id)
      answers.push([...(await runShell(warren, id, facts)).split('\n'), (await getSandbox(warren, id)).ip!])
      await checkChain(warren, id, 1)
      assert.equal(await runShell(warren, id, 'echo $COLOUR'), 'red')
      await destroySandbox(warren, id)
    }

    for (let i = 0; i < 5; i++) assert.equal(new Set(answers.map((lines) => lines[i])).size, 11, `fact ${i}`)
    await checkChain(warren, source.id, 1)
    await destroySandbox(warren, source.id)
  })

  test('twenty live forks of one source keep the data of all, and its open layers do not pile up', async () => {
    const source = await createSandbox(warren)
    await startChain(warren, source.id)
    const children: string[] = []
    let seen = 0

    for (let i = 1; i <= 20; i++) {
      // Not synced: what only the guest's memory has must be in the fork as well.
      await runShell(warren, source.id, `echo ${i} > /root/note-${i}; head -c 200000 /dev/urandom > /root/junk`)
      const child = await forkSandbox(warren, source.id, { live: true, start_paused: true })
      children.push(child.id)
      seen = await checkChain(warren, source.id, seen)
      assert.ok(countOpenLayers(findQemuPid(warren, source.id)!) < 24, `fork ${i}`)
    }

    await pauseSandbox(warren, source.id)
    await checkDisk(warren, source.id)
    await resumeSandbox(warren, source.id)
    await checkChainOnDisk(warren, source.id, seen)
    assert.equal(await countNotes(source.id), 20)
    await destroySandbox(warren, source.id)
    for (const [i, id] of children.entries()) {
      if (i % 5 === 0) await checkDisk(warren, id)
      await resumeSandbox(warren, id)
      await checkChainOnDisk(warren, id, 0)
      assert.equal(await countNotes(id), i + 1)
      await destroySandbox(warren, id)
    }
  })

  test('after QEMU dies, a sandbox is resumed from its snapshot, or from its disk alone', async () => {
    const [saved, never] = [await createSandbox(warren), await createSandbox(warren)]
    await runShell(warren, saved.id, 'echo one > /root/note; (sleep 1000) >/dev/null 2>&1 & echo $! > /root/pid')
    await runShell(warren, never.id, 'echo two > /root/note; sync')
    await pauseSandbox(warren, saved.id)
    await resumeSandbox(warren, saved.id)

    for (const { id } of [saved, never]) kill(findQemuPid(warren, id)!)
    for (const { id } of [saved, never]) {
      await until(async () => (await getSandbox(warren, id)).status === 'error', 'its exit is noticed', 10_000)
    }
    for (const { id } of [saved, never]) await resumeSandbox(warren, id)

    assert.equal(
      await runShell(warren, saved.id, 'cat /root/note; kill -0 $(cat /root/pid) && echo alive'),
      'one\nalive',
    )
    assert.equal(await runShell(warren, never.id, 'cat /root/note; hostname'), `two\n${never.name}`)
    // A sandbox that was booted from its disk can be paused like any other.
    await pauseSandbox(warren, never.id)
    await resumeSandbox(warren, never.id)
    assert.equal(await runShell(warren, never.id, 'cat /root/note'), 'two')
    for (const { id } of [saved, never]) await destroySandbox(warren, id)
  })

  test('a command that a pause or a delete interrupts is a conflict, not a command that never started', async () => {
    for (const interrupt of [pauseSandbox, destroySandbox]) {
      const { id } = await createSandbox(warren)
      const script = 'touch /root/begun; sleep 1000'
      const exec = request(warren, 'POST', `/sandboxes/${id}/exec`, { cmd: 'sh', args: ['-c', script] })
      await until(
        async () => (await runShell(warren, id, 'ls /root/begun || true')) === '/root/begun',
        'the command has begun',
        20_000,
      )

      await interrupt(warren, id)

      const { status, data } = await exec
      assert.deepEqual([status, data.code], [409, 'exec_interrupted'])
    }
  })

  test('a sandbox can pause and delete itself from inside, with a reason', async () => {
    const { id } = await createSandbox(warren)
    const post = "curl -s -w ' %{http_code}' -X POST 'http://127.0.0.1:1029/self/pause?reason=all%20done%07'"
    // A managed process, because the pause may interrupt an exec before its result is delivered.
    await requestOk(warren, 'POST', `/sandboxes/${id}/processes`, {
      cmd: 'sh',
      args: ['-c', `${post} > /root/unfinished; mv /root/unfinished /root/response`],
    }).catch((error) => assert.match(String(error), /expected running/))
    await until(async () => (await getSandbox(warren, id)).status === 'paused', 'it pauses itself', 20_000)
    assert.match((await getSandbox(warren, id)).status_reason ?? '', /all done$/)

    // It works after a resume and in a fork too, also by the file /run/self.
    const child = await forkSandbox(warren, id)
    await resumeSandbox(warren, id)
    await until(
      async () => (await runShell(warren, id, 'cat /root/response 2>/dev/null || true')) !== '',
      'the program that asked for the pause has its response',
      20_000,
    )
    assert.equal(await runShell(warren, id, 'cat /root/response'), '{"status":"accepted","action":"pause"} 202')
    await runInterrupted(warren, id, 'echo park > /run/self')
    await until(async () => (await getSandbox(warren, id)).status === 'paused', 'it pauses again', 20_000)
    await runInterrupted(warren, child.id, 'echo "# nothing" > /run/self; echo retire > /run/self')
    await until(async () => (await getSandbox(warren, child.id)).status === 'destroyed', 'it deletes itself', 20_000)
    await destroySandbox(warren, id)
  })

  test('paused sandboxes survive when the host agent and the control plane are killed', async () => {
    const { id } = await createSandbox(warren)
    await startChain(warren, id)
    const seen = await checkChain(warren, id, 0)
    await pauseSandbox(warren, id)

    await killServices(warren.instance.dataDir)

    await until(
      async () => (await fetch(`${warren.instance.baseUrl}/readyz`).catch(() => undefined))?.ok ?? false,
      'Warren is ready again',
    )
    await until(
      async () => (await request(warren, 'POST', `/sandboxes/${id}/resume`)).status === 202,
      'it can be resumed',
    )
    await waitForStatus(warren, id, 'running')
    await checkChainOnDisk(warren, id, seen)
    await destroySandbox(warren, id)
  })
})

/** Runs a script that pauses or deletes its sandbox, which may happen before the result is delivered. */
async function runInterrupted(warren: VmInstance, id: string, script: string): Promise<void> {
  const { status, data } = await request(warren, 'POST', `/sandboxes/${id}/exec`, { cmd: 'sh', args: ['-c', script] })
  assert.ok(status === 200 || data.code === 'exec_interrupted', `${script}: ${status} ${JSON.stringify(data)}`)
}

/** The notes that a source had when it was forked, each with its number. */
async function countNotes(id: string): Promise<number> {
  const notes = (await runShell(warren, id, 'cat /root/note-* | sort -n')).split('\n')
  for (const [i, note] of notes.entries()) assert.equal(note, `${i + 1}`)
  return notes.length
}

function countOpenLayers(qemu: number): number {
  const open = readdirSync(`/proc/${qemu}/fd`).map((fd) => readlinkSync(`/proc/${qemu}/fd/${fd}`))
  return new Set(open.filter((file) => file.endsWith('.qcow2') || file.includes('/objects/'))).size
}

/** Counted in all pages of the sandbox's events. */
async function countPauses(warren: VmInstance, id: string): Promise<number> {
  let pauses = 0
  for (let offset = 0; ; ) {
    const { data, pagination } = await requestOk(warren, 'GET', `/sandboxes/${id}/events?limit=500&offset=${offset}`)
    const events = data as { to: string }[]
    pauses += events.filter((event) => event.to === 'paused').length
    offset += events.length
    if (events.length === 0 || offset >= (pagination as { total: number }).total) return pauses
  }
}

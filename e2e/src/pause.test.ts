/** Pause, resume and fork lose nothing: told with a writer that notices every missing byte. */
import assert from 'node:assert/strict'
import { readdirSync, readlinkSync } from 'node:fs'
import { describe, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { findInstance, kill } from './box.ts'
import { checkDisk } from './check-disk.ts'
import { checkChain, checkChainOnDisk, startChain } from './hash-chain.ts'
import { call, create, destroy, fork, must, pause, resume, settle, sh, view } from './lifecycle.ts'
import { cannotRunVms, qemuOf, SOAK, startVmBox, VM_STORIES_LIMIT_MS } from './vm-box.ts'

/** Room for one body on standby: of two sandboxes that are paused in turn, one is resumed from disk, one in place. */
const it = cannotRunVms ? (undefined as never) : await startVmBox({ WARREN_STANDBY_MIB: '90', WARREN_POOL_MIB: '0' })
const CYCLES = Number(process.env.WARREN_TEST_PAUSES ?? (SOAK ? 1_000 : 200))

describe('pause and resume', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  test(`a hash chain survives ${CYCLES} pauses at random moments, on disk and in memory`, {
    timeout: VM_STORIES_LIMIT_MS,
  }, async () => {
    const [one, two] = [await create(it), await create(it)]
    const seen = new Map<string, number>()
    const processes = new Set<number | undefined>()
    for (const { id } of [one, two]) await startChain(it, id)

    for (let cycle = 0; cycle < CYCLES / 2; cycle++) {
      for (const { id } of [one, two]) {
        seen.set(id, await checkChain(it, id, seen.get(id) ?? 0))
        await pause(it, id)
      }
      if (cycle % 20 === 7) await checkDisk(it, one.id)
      for (const { id } of [one, two]) await resume(it, id)
      processes.add(qemuOf(it, two.id))
      if (cycle % 10 === 5) for (const { id } of [one, two]) await checkChainOnDisk(it, id, seen.get(id)!)
    }

    // The one that goes on in place does so in few processes, none of which collects layers of disk.
    assert.ok(processes.size <= Math.ceil(CYCLES / 40), `${processes.size} processes`)
    assert.ok(openLayers(qemuOf(it, two.id)!) < 24)
    for (const { id } of [one, two]) {
      const last = await checkChainOnDisk(it, id, seen.get(id)!)
      await until(async () => (await checkChain(it, id, last)) > last, 'it goes on writing')
      const { data } = await must(it, 'GET', `/sandboxes/${id}/events?limit=500`)
      const pauses = (data as { to: string }[]).filter((event) => event.to === 'paused')
      assert.equal(pauses.length, CYCLES / 2)
      await destroy(it, id)
    }
  })

  test('what ran goes on: processes, open files, memory, listening sockets, and the clock is right', async () => {
    const { id } = await create(it, { name: 'sleeper' })
    await sh(
      it,
      id,
      'echo kept > /dev/shm/memory; exec 3>/root/open; (sleep 1000; echo late >&3) >/dev/null 2>&1 & echo $! > /root/pid',
    )

    const paused = await pause(it, id)
    await resume(it, id)

    assert.match(paused.status_reason ?? '', /./)
    assert.equal(
      await sh(it, id, 'cat /dev/shm/memory; kill -0 $(cat /root/pid) && echo alive; hostname'),
      'kept\nalive\nsleeper',
    )
    const before = Date.now()
    const guest = Number(await sh(it, id, 'date +%s%3N'))
    assert.ok(guest > before - 100 && guest < Date.now() + 100, `${guest} against ${before}`)
    await destroy(it, id)
  })

  test('a sandbox that is not where it should be says so', async () => {
    const { id } = await create(it)
    assert.equal((await call(it, 'POST', `/sandboxes/${id}/resume`)).status, 409)
    assert.equal((await call(it, 'POST', `/sandboxes/${id}/fork`)).status, 409)
    await pause(it, id)

    const again = await call(it, 'POST', `/sandboxes/${id}/pause`)
    const exec = await call(it, 'POST', `/sandboxes/${id}/exec`, { cmd: 'true' })

    assert.deepEqual([again.status, again.data.message], [409, 'sandbox is paused, expected running'])
    assert.deepEqual([exec.status, exec.data.code], [404, 'sandbox_not_running'])
    await destroy(it, id)
  })

  test('forks carry the chain on, ten deep, whoever is deleted first', async () => {
    const root = await create(it)
    await startChain(it, root.id)
    const alive = [root.id]
    let [newest, seen] = [root.id, 0]

    for (let depth = 0; depth < 10; depth++) {
      seen = await checkChain(it, newest, seen)
      await pause(it, newest)
      newest = (await fork(it, newest)).id
      alive.push(newest)
      seen = await checkChainOnDisk(it, newest, seen)
      // Any of them but the newest.
      if (depth % 2 === 1) await destroy(it, alive.splice((depth * 7) % (alive.length - 1), 1)[0]!)
    }

    for (const id of alive.slice(0, -1)) await destroy(it, id)
    await pause(it, newest)
    await checkDisk(it, newest)
    await resume(it, newest)
    await checkChainOnDisk(it, newest, seen)
    await destroy(it, newest)
  })

  test('a fork of a running sandbox leaves it running, and ten at once are all their own', async () => {
    const source = await create(it, { envs: { COLOUR: 'red' } })
    await startChain(it, source.id)
    const body = { live: true, count: 10, start_paused: true }
    const children = (await must(it, 'POST', `/sandboxes/${source.id}/fork`, body)) as unknown as { id: string }[]
    assert.equal(children.length, 10)

    const facts =
      'cat /proc/sys/kernel/random/uuid /etc/machine-id; hostname; head -c 16 /dev/urandom | od -An -tx8; mktemp -u'
    const said: string[][] = [(await sh(it, source.id, facts)).split('\n')]
    for (const { id } of children) {
      await settle(it, id, 'paused')
      await resume(it, id)
      said.push([...(await sh(it, id, facts)).split('\n'), (await view(it, id)).ip!])
      await checkChain(it, id, 1)
      assert.equal(await sh(it, id, 'echo $COLOUR'), 'red')
      await destroy(it, id)
    }

    for (let i = 0; i < 5; i++) assert.equal(new Set(said.map((facts) => facts[i])).size, 11, `fact ${i}`)
    await checkChain(it, source.id, 1)
    await destroy(it, source.id)
  })

  test('a QEMU that dies is resumed from what was saved, or from its disk alone', async () => {
    const [saved, never] = [await create(it), await create(it)]
    await sh(it, saved.id, 'echo one > /root/note; (sleep 1000) >/dev/null 2>&1 & echo $! > /root/pid')
    await sh(it, never.id, 'echo two > /root/note; sync')
    await pause(it, saved.id)
    await resume(it, saved.id)

    for (const { id } of [saved, never]) kill(qemuOf(it, id)!)
    for (const { id } of [saved, never]) {
      await until(async () => (await view(it, id)).status === 'error', 'its end is noticed', 10_000)
    }
    for (const { id } of [saved, never]) await resume(it, id)

    assert.equal(await sh(it, saved.id, 'cat /root/note; kill -0 $(cat /root/pid) && echo alive'), 'one\nalive')
    assert.equal(await sh(it, never.id, 'cat /root/note; hostname'), `two\n${never.name}`)
    // One that was booted from its disk can be paused like any other.
    await pause(it, never.id)
    await resume(it, never.id)
    assert.equal(await sh(it, never.id, 'cat /root/note'), 'two')
    for (const { id } of [saved, never]) await destroy(it, id)
  })

  test('a sandbox pauses and deletes itself from inside, and says why', async () => {
    const { id } = await create(it)
    const signal = (path: string) => sh(it, id, `curl -s -w ' %{http_code}' -X POST 'http://127.0.0.1:1029${path}'`)

    const answer = await signal('/self/pause?reason=all%20done%07')
    await until(async () => (await view(it, id)).status === 'paused', 'it pauses itself', 20_000)
    assert.equal(answer, '{"status":"accepted","action":"pause"} 202')
    assert.match((await view(it, id)).status_reason ?? '', /all done$/)

    // The same ways are there after a resume, and in a fork.
    const child = await fork(it, id)
    await resume(it, id)
    await sh(it, id, 'echo park > /run/self')
    await until(async () => (await view(it, id)).status === 'paused', 'it pauses again', 20_000)
    await sh(it, child.id, 'echo "# nothing" > /run/self; echo retire > /run/self')
    await until(async () => (await view(it, child.id)).status === 'destroyed', 'it deletes itself', 20_000)
    await destroy(it, id)
  })

  test('paused sandboxes outlive their host agent and control plane', async () => {
    const { id } = await create(it)
    await startChain(it, id)
    const seen = await checkChain(it, id, 0)
    await pause(it, id)
    const { children } = (await findInstance(it.box.dataDir))!

    for (const child of children) kill(child.pid)

    await until(async () => (await fetch(`${it.box.baseUrl}/readyz`).catch(() => undefined))?.ok ?? false, 'it is back')
    await until(async () => (await call(it, 'POST', `/sandboxes/${id}/resume`)).status === 202, 'it can be resumed')
    await settle(it, id, 'running')
    await checkChainOnDisk(it, id, seen)
    await destroy(it, id)
  })
})

function openLayers(qemu: number): number {
  const open = readdirSync(`/proc/${qemu}/fd`).map((fd) => readlinkSync(`/proc/${qemu}/fd/${fd}`))
  return new Set(open.filter((file) => file.endsWith('.qcow2') || file.includes('/objects/'))).size
}

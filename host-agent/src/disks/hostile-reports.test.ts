/** A guest that sends more reports about its mounts than its host can use. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { passTime } from '@warren/kit/testing/pass-time'
import { until } from '@warren/kit/testing/until'
import type { GuestMount } from '@warren/protocol'
import { MountReport } from './mount-report.ts'
import { startFakeGuest } from './testing/fake-guest.ts'
import { watchGuestMounts } from './watch-guest-mounts.ts'

const SECONDS = 3

test('reports are parsed a few times in a second, however many there are, and the newest counts', async (t) => {
  const guest = await startFakeGuest(t)
  let sent = 0
  let isFlooding = true
  guest.onWatch = (stream) => {
    stream.respond({ ':status': 200 })
    const flood = () => {
      while (isFlooding && !stream.destroyed) {
        const report: GuestMount = { id: 'mount', revision: ++sent, status: 'failed', mount_error: 'x'.repeat(4_000) }
        if (!stream.write(`${JSON.stringify({ mounts: [report] })}\n`)) return void stream.once('drain', flood)
      }
      stream.write(`${JSON.stringify({ mounts: [{ id: 'mount', revision: sent + 1, status: 'mounted' }] })}\n`)
    }
    flood()
  }
  const ended = new AbortController()
  t.after(() => ended.abort())
  const reports: GuestMount[] = []
  void watchGuestMounts(
    () => guest.vmm.channel(),
    (mounts) => void reports.push(...mounts),
    ended.signal,
  )

  await passTime(SECONDS * 1_000, 'the guest floods its host')
  const [parsed, received] = [reports.length, sent]
  isFlooding = false

  assert.ok(parsed <= SECONDS * 5, `${parsed} reports were parsed`)
  assert.ok(received * 4_000 <= SECONDS * 600_000 + 2_000_000, `${received} reports were taken`)
  await until(() => reports.at(-1)?.status === 'mounted', 'the newest report')
})

test('a line in pieces of a byte, or without an end, costs little', async (t) => {
  const guest = await startFakeGuest(t)
  let streams = 0
  guest.onWatch = (stream) => {
    streams++
    stream.respond({ ':status': 200 })
    const flood = () => {
      while (!stream.destroyed) if (!stream.write('x')) return void stream.once('drain', flood)
    }
    flood()
  }
  const ended = new AbortController()
  t.after(() => ended.abort())
  void watchGuestMounts(
    () => guest.vmm.channel(),
    () => assert.fail('no report is complete'),
    ended.signal,
  )

  const before = process.memoryUsage.rss()
  await passTime(SECONDS * 1_000, 'the guest floods its host')

  assert.ok(process.memoryUsage.rss() - before < 200 * 1024 ** 2)
  assert.ok(streams <= SECONDS + 1, `${streams} streams`)
})

test('a status that changes all the time is shown at intervals, and the last one in the end', () => {
  let now = 0
  const report = new MountReport(() => now)
  report.expect(1)
  let changes = 0
  let shown = ''
  const read = (): void => {
    const text = JSON.stringify(report.read(1))
    if (text !== shown) changes++
    shown = text
  }

  for (let second = 0; second < 600; second++) {
    now = second * 1_000
    report.accept({ id: 'mount', revision: 1, status: 'failed', mount_error: `reason ${second}` })
    read()
  }

  assert.ok(changes >= 10 && changes <= 70, `${changes} changes in ten minutes`)
  now += 10_000
  read()
  assert.match(shown, /reason 599/)
})

/**
 * A program that writes as fast as it can: the newest is kept, nothing in between is lost, and no part holds more of it
 * than it may. WARREN_FLOOD_SECONDS makes it last longer than the few seconds of the test suite.
 */
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { describe, test } from 'node:test'
import { setTimeout as delay } from 'node:timers/promises'
import { findInstance } from './box.ts'
import { create, sh } from './lifecycle.ts'
import { type Followed, processClient, readEvents, readOutput } from './process-client.ts'
import { cannotRunVms, qemuOf, startVmBox, VM_STORIES_LIMIT_MS } from './vm-box.ts'

const it = cannotRunVms ? (undefined as never) : await startVmBox()
const sandbox = cannotRunVms ? (undefined as never) : await create(it)

const SECONDS = Number(process.env.WARREN_FLOOD_SECONDS || 5)
const MIB = 1024 * 1024
const EVENT_MAX_BYTES = 32 * 1024
/** What a part may grow by, whatever passes: two garbage collections and the windows of its streams. */
const GROWTH_MAX_MIB = 64
/** Of the agent in the guest: its journal and what lies in its buffers. */
const AGENT_GROWTH_MAX_MIB = 8
const LOOK_MS = 50

describe('a flood of output', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  const processes = processClient(it, sandbox?.id)
  const flood = () => processes.start({ cmd: 'sh', args: ['-c', `timeout ${SECONDS} seq 1 1000000000; echo; exit 3`] })

  async function rssMib(): Promise<Record<string, number>> {
    const { children } = (await findInstance(it.box.dataDir))!
    const pids = [...children.map(({ pid }) => pid), qemuOf(it, sandbox.id)!]
    const entries = pids.map((pid) => {
      const status = readFileSync(`/proc/${pid}/status`, 'utf8')
      return [`${/^Name:\s*(.*)$/m.exec(status)![1]} ${pid}`, Number(/^VmRSS:\s*(\d+)/m.exec(status)![1]) / 1024]
    })
    return Object.fromEntries(entries)
  }

  const agentMib = async () => Number(await sh(it, sandbox.id, "awk '/^VmRSS/ { print $2 }' /proc/1/status")) / 1024

  async function untilExited(id: string): Promise<void> {
    while ((await processes.call('GET', `/${id}/wait`)).status === 408);
  }

  /** How much each part grew at most while the work went on. */
  async function growthDuring(work: Promise<unknown>): Promise<Record<string, number>> {
    const before = await rssMib()
    const most = { ...before }
    let goesOn = true
    const ended = work.finally(() => {
      goesOn = false
    })
    while (goesOn) {
      for (const [part, mib] of Object.entries(await rssMib())) most[part] = Math.max(most[part] ?? 0, mib)
      await Promise.race([ended.catch(() => {}), delay(LOOK_MS)])
    }
    await ended
    return Object.fromEntries(Object.entries(most).map(([part, mib]) => [part, mib - (before[part] ?? 0)]))
  }

  function checkGrowth(t: { diagnostic(text: string): void }, growth: Record<string, number>): void {
    t.diagnostic(
      `grew by at most, in MiB: ${JSON.stringify(growth, (_, v) => (typeof v === 'number' ? Math.round(v) : v))}`,
    )
    for (const [part, mib] of Object.entries(growth)) {
      assert.ok(mib < GROWTH_MAX_MIB, `${part} grew by ${Math.round(mib)} MiB`)
    }
  }

  test('nobody reads: the newest MiB is kept, in one piece, and what is older is 410', async (t) => {
    const agentBefore = await agentMib()
    const { process_id } = await flood()

    const growth = await growthDuring(untilExited(process_id))

    checkGrowth(t, growth)
    const { output, exit_code } = await processes.get(process_id)
    t.diagnostic(`${output.newest_seq} events in ${SECONDS} s`)
    assert.equal(exit_code, 3)
    assert.ok(output.bytes <= MIB && output.bytes > MIB - EVENT_MAX_BYTES, `${output.bytes} bytes are kept`)
    const { bytes, seq, end } = await readCount(process_id, output.oldest_seq - 1)
    assert.deepEqual([bytes, seq, end], [output.bytes, output.newest_seq, { type: 'exit', exit_code: 3 }])
    const expired = await processes.call('GET', `/${process_id}/connect?after=1`)
    assert.deepEqual(
      [expired.status, expired.data.code, expired.data.oldest_available_seq],
      [410, 'output_offset_expired', String(output.oldest_seq)],
    )
    assert.ok((await agentMib()) - agentBefore < AGENT_GROWTH_MAX_MIB)
  })

  test('one reads along and one stands still: the first has no gap, the second is told', async (t) => {
    const { process_id } = await flood()
    const still = await processes.connect(process_id, 0)

    const reading = readAll(process_id)
    const growth = await growthDuring(reading)
    const { bytes, cuts, end } = await reading

    checkGrowth(t, growth)
    t.diagnostic(`${Math.round(bytes / 1e6)} MB were read, ${cuts} times behind the journal`)
    assert.deepEqual(end, { type: 'exit', exit_code: 3 })
    const late = await readOutput(still, 0)
    assert.ok(late.end?.type === 'error' && 'oldest_available_seq' in late.end, JSON.stringify(late.end))
  })

  /** One that fell behind the journal goes on with what is kept (after 0). Within a stream nothing is lost. */
  async function readAll(id: string): Promise<{ bytes: number; cuts: number; end: Followed['end'] }> {
    let bytes = 0
    for (let cuts = 0; ; cuts++) {
      const read = await readCount(id, 0)
      bytes += read.bytes
      if (read.end?.type !== 'error') return { bytes, cuts, end: read.end }
      assert.ok('oldest_available_seq' in read.end, JSON.stringify(read.end))
    }
  }

  async function readCount(id: string, after: number): Promise<{ bytes: number; seq: number; end: Followed['end'] }> {
    let check: ((bytes: Buffer) => void) | undefined
    const events = readEvents(await processes.connect(id, after), after)
    let bytes = 0
    let seq = after
    for (let next = await events.next(); ; next = await events.next()) {
      if (next.done) return { bytes, seq, end: next.value }
      seq = next.value.seq
      bytes += next.value.bytes.length
      check ??= countChecker(seq === 1)
      check(next.value.bytes)
    }
  }
})

/**
 * Every line is one more than the one before. The first may be the rest of one, unless it is the beginning; the last
 * may be cut, because the program was killed while it wrote.
 */
function countChecker(isBeginning: boolean): (bytes: Buffer) => void {
  let rest = ''
  let held: string | undefined
  let isWhole = isBeginning
  let expected = isBeginning ? 1 : undefined
  return (bytes) => {
    const lines = (rest + bytes.toString('latin1')).split('\n')
    rest = lines.pop()! // There is always one.
    for (const line of lines) {
      if (isWhole && held !== undefined) {
        expected ??= Number(held)
        if (held !== String(expected)) assert.fail(`${held} where ${expected} should be`)
        expected++
      }
      if (isWhole) held = line
      isWhole = true
    }
  }
}

/**
 * A program that writes as fast as it can: the newest is kept, nothing in between is lost, and no part holds more of it
 * than it may, however it is read. `npm run soak` makes it last 30 s.
 */
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { describe, test } from 'node:test'
import { setTimeout as delay } from 'node:timers/promises'
import { findInstanceFile } from './support/instance.ts'
import { type Followed, processClient, readEvents, readOutput } from './support/process-client.ts'
import { createSandbox, runShell } from './support/sandboxes.ts'
import { cannotRunVms, findQemuPid, SOAK, startVmInstance, VM_STORIES_LIMIT_MS } from './support/vm-instance.ts'

const warren = cannotRunVms ? (undefined as never) : await startVmInstance()
const sandbox = cannotRunVms ? (undefined as never) : await createSandbox(warren)

const SECONDS = SOAK ? 30 : 5
const MIB = 1024 * 1024
const EVENT_MAX_BYTES = 32 * 1024
/** What a part may grow by, whatever passes: two garbage collections and the windows of its streams. */
const GROWTH_MAX_MIB = 64
/** Of the agent in the guest: its journal and what lies in its buffers. */
const AGENT_GROWTH_MAX_MIB = 8
/** Between two events of the slow reader: far below what the flood writes. */
const SLOW_MS = 100
const AGENT = 'agent in the guest'
const LOOK_MS = 50

describe('a flood of output', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  const processes = processClient(warren, sandbox?.id)
  const flood = () => processes.start({ cmd: 'sh', args: ['-c', `timeout ${SECONDS} seq 1 1000000000; echo; exit 3`] })

  async function rssMib(): Promise<Record<string, number>> {
    const { children } = (await findInstanceFile(warren.instance.dataDir))!
    const pids = [...children.map(({ pid }) => pid), findQemuPid(warren, sandbox.id)!]
    const entries = pids.map((pid) => {
      const status = readFileSync(`/proc/${pid}/status`, 'utf8')
      return [`${/^Name:\s*(.*)$/m.exec(status)![1]} ${pid}`, Number(/^VmRSS:\s*(\d+)/m.exec(status)![1]) / 1024]
    })
    return Object.fromEntries(entries)
  }

  const agentMib = async (field: 'VmRSS' | 'VmHWM') =>
    Number(await runShell(warren, sandbox.id, `awk '/^${field}/ { print $2 }' /proc/1/status`)) / 1024

  async function untilExited(id: string): Promise<void> {
    while ((await processes.call('GET', `/${id}/wait`)).status === 408);
  }

  /** How much each part grew at most while a flood, and the work on it, went on. */
  async function growthDuring(start: () => Promise<unknown>): Promise<Record<string, number>> {
    await runShell(warren, sandbox.id, 'echo 5 > /proc/1/clear_refs') // Its peak begins anew.
    const agentBefore = await agentMib('VmRSS')
    const before = await rssMib()
    const work = start()
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
    const growth = Object.entries(most).map(([part, mib]) => [part, mib - (before[part] ?? 0)])
    return Object.fromEntries([...growth, [AGENT, (await agentMib('VmHWM')) - agentBefore]])
  }

  function checkGrowth(t: { diagnostic(text: string): void }, growth: Record<string, number>): void {
    t.diagnostic(
      `grew by at most, in MiB: ${JSON.stringify(growth, (_, v) => (typeof v === 'number' ? Math.round(v) : v))}`,
    )
    for (const [part, mib] of Object.entries(growth)) {
      assert.ok(mib < (part === AGENT ? AGENT_GROWTH_MAX_MIB : GROWTH_MAX_MIB), `${part} grew by ${mib} MiB`)
    }
  }

  test('nobody reads: the newest MiB is kept, in one piece, and what is older is 410', async (t) => {
    let id = ''
    const growth = await growthDuring(async () => {
      id = (await flood()).process_id
      await untilExited(id)
    })

    checkGrowth(t, growth)
    const { output, exit_code } = await processes.get(id)
    t.diagnostic(`${output.newest_seq} events in ${SECONDS} s`)
    assert.equal(exit_code, 3)
    assert.ok(output.bytes <= MIB && output.bytes > MIB - EVENT_MAX_BYTES, `${output.bytes} bytes are kept`)
    const { bytes, seq, end } = await readCount(id, output.oldest_seq - 1)
    assert.deepEqual([bytes, seq, end], [output.bytes, output.newest_seq, { type: 'exit', exit_code: 3 }])
    const expired = await processes.call('GET', `/${id}/connect?after=1`)
    assert.deepEqual(
      [expired.status, expired.data.code, expired.data.oldest_available_seq],
      [410, 'output_offset_expired', String(output.oldest_seq)],
    )
  })

  test('one reads along, one slowly, one not at all: no gap for any, and the late are told', async (t) => {
    let id = ''
    let still: Response | undefined
    let reads: Awaited<ReturnType<typeof readAll>>[] = []
    const growth = await growthDuring(async () => {
      id = (await flood()).process_id
      still = await processes.connect(id, 0)
      reads = await Promise.all([readAll(id), readAll(id, SLOW_MS)])
    })

    checkGrowth(t, growth)
    for (const { bytes, cuts, end } of reads) {
      t.diagnostic(`${Math.round(bytes / 1e6)} MB were read, ${cuts} times behind the journal`)
      assert.deepEqual(end, { type: 'exit', exit_code: 3 })
    }
    const [quick, slow] = reads
    assert.ok(slow!.cuts > 0 && slow!.bytes < quick!.bytes, 'the slow one was too slow')
    const late = await readOutput(still!, 0)
    assert.ok(late.end?.type === 'error' && 'oldest_available_seq' in late.end, JSON.stringify(late.end))
    const { output } = await processes.get(id)
    assert.ok(output.bytes <= MIB && output.bytes > MIB - EVENT_MAX_BYTES, `${output.bytes} bytes are kept`)
    assert.equal((await readCount(id, output.oldest_seq - 1)).seq, output.newest_seq)
  })

  /** One that fell behind the journal goes on with what is kept (after 0). Within a stream nothing is lost. */
  async function readAll(id: string, pauseMs?: number): Promise<{ bytes: number; cuts: number; end: Followed['end'] }> {
    let bytes = 0
    for (let cuts = 0; ; cuts++) {
      const read = await readCount(id, 0, pauseMs)
      bytes += read.bytes
      if (read.end?.type !== 'error') return { bytes, cuts, end: read.end }
      assert.ok('oldest_available_seq' in read.end, JSON.stringify(read.end))
    }
  }

  async function readCount(
    id: string,
    after: number,
    pauseMs?: number,
  ): Promise<{ bytes: number; seq: number; end: Followed['end'] }> {
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
      if (pauseMs !== undefined) await delay(pauseMs)
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

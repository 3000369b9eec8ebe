/**
 * A program that writes as fast as it can: the newest output is retained without gaps, and no process holds more of it
 * than it may, however it is read. `npm run soak` runs it for 30 s.
 */
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { describe, test } from 'node:test'
import { passTime } from '@warren/kit/testing/pass-time'
import { until } from '@warren/kit/testing/until'
import { getServicePids } from './support/instance.ts'
import { type Followed, processClient, readEvents, readOutput } from './support/process-client.ts'
import { createSandbox, runShell } from './support/sandboxes.ts'
import {
  cannotRunVms,
  findQemuPid,
  SOAK,
  startUnlessSkipped,
  startVmInstance,
  VM_STORIES_LIMIT_MS,
} from './support/vm-instance.ts'

const warren = await startUnlessSkipped(cannotRunVms, () => startVmInstance())
const sandbox = await startUnlessSkipped(cannotRunVms, () => createSandbox(warren))

const SECONDS = SOAK ? 30 : 5
/** Generous: the program has to share the processor with everything that reads its output. */
const EXIT_LIMIT_MS = SECONDS * 1000 + 60_000
const MIB = 1024 * 1024
const EVENT_MAX_BYTES = 32 * 1024
/** How much each process may grow, whatever the amount of output: garbage between collections, and stream windows. */
const GROWTH_MAX_MIB = 64
/** The same for the guest agent: its journal and its buffers. */
const AGENT_GROWTH_MAX_MIB = 8
/** Pause of the slow reader between two events, so that it reads far less than the flood writes. */
const SLOW_MS = 100
const AGENT = 'guest agent'
const SAMPLE_MS = 50

describe('a flood of output', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  const processes = processClient(warren, sandbox.id)
  const startFlood = () =>
    processes.start({ cmd: 'sh', args: ['-c', `timeout ${SECONDS} seq 1 1000000000; echo; exit 3`] })

  async function readRssMib(): Promise<Record<string, number>> {
    const pids = [...(await getServicePids(warren.instance.dataDir)), findQemuPid(warren, sandbox.id)!]
    const entries = pids.map((pid) => {
      const status = readFileSync(`/proc/${pid}/status`, 'utf8')
      return [`${/^Name:\s*(.*)$/m.exec(status)![1]} ${pid}`, Number(/^VmRSS:\s*(\d+)/m.exec(status)![1]) / 1024]
    })
    return Object.fromEntries(entries)
  }

  const readAgentMib = async (field: 'VmRSS' | 'VmHWM') =>
    Number(await runShell(warren, sandbox.id, `awk '/^${field}/ { print $2 }' /proc/1/status`)) / 1024

  async function waitUntilExited(id: string): Promise<void> {
    const hasExited = async () => (await processes.request('GET', `/${id}/wait`)).status !== 408
    await until(hasExited, 'the flood has ended', EXIT_LIMIT_MS)
  }

  /** How much each process grew at most, in MiB, during the work. */
  async function measureGrowth(start: () => Promise<unknown>): Promise<Record<string, number>> {
    await runShell(warren, sandbox.id, 'echo 5 > /proc/1/clear_refs') // Resets its peak.
    const agentBefore = await readAgentMib('VmRSS')
    const before = await readRssMib()
    const work = start()
    const peak = { ...before }
    let isRunning = true
    const ended = work.finally(() => {
      isRunning = false
    })
    while (isRunning) {
      for (const [part, mib] of Object.entries(await readRssMib())) peak[part] = Math.max(peak[part] ?? 0, mib)
      await Promise.race([ended.catch(() => {}), passTime(SAMPLE_MS, 'memory is sampled')])
    }
    await ended
    const growth = Object.entries(peak).map(([part, mib]) => [part, mib - (before[part] ?? 0)])
    return Object.fromEntries([...growth, [AGENT, (await readAgentMib('VmHWM')) - agentBefore]])
  }

  function checkGrowth(t: { diagnostic(text: string): void }, growth: Record<string, number>): void {
    t.diagnostic(
      `grew by at most, in MiB: ${JSON.stringify(growth, (_, v) => (typeof v === 'number' ? Math.round(v) : v))}`,
    )
    for (const [part, mib] of Object.entries(growth)) {
      assert.ok(mib < (part === AGENT ? AGENT_GROWTH_MAX_MIB : GROWTH_MAX_MIB), `${part} grew by ${mib} MiB`)
    }
  }

  test('without a reader the newest MiB is retained without gaps, and older output is 410', async (t) => {
    let id = ''
    const growth = await measureGrowth(async () => {
      id = (await startFlood()).process_id
      await waitUntilExited(id)
    })

    checkGrowth(t, growth)
    const { output, exit_code } = await processes.get(id)
    t.diagnostic(`${output.newest_seq} events in ${SECONDS} s`)
    assert.equal(exit_code, 3)
    assert.ok(output.bytes <= MIB && output.bytes > MIB - EVENT_MAX_BYTES, `${output.bytes} bytes are retained`)
    const { bytes, seq, end } = await readCount(id, output.oldest_seq - 1)
    assert.deepEqual([bytes, seq, end], [output.bytes, output.newest_seq, { type: 'exit', exit_code: 3 }])
    const expired = await processes.request('GET', `/${id}/connect?after=1`)
    assert.deepEqual(
      [expired.status, expired.data.code, expired.data.oldest_available_seq],
      [410, 'output_offset_expired', String(output.oldest_seq)],
    )
  })

  test('fast, slow and idle readers get no gaps within a stream, and late ones get an error', async (t) => {
    let id = ''
    let idle: Response | undefined
    let reads: Awaited<ReturnType<typeof readAll>>[] = []
    const growth = await measureGrowth(async () => {
      id = (await startFlood()).process_id
      idle = await processes.connect(id, 0)
      reads = await Promise.all([readAll(id), readAll(id, SLOW_MS)])
    })

    checkGrowth(t, growth)
    for (const { bytes, expirations, end } of reads) {
      t.diagnostic(`${Math.round(bytes / 1e6)} MB were read, ${expirations} times behind the journal`)
      assert.deepEqual(end, { type: 'exit', exit_code: 3 })
    }
    const [quick, slow] = reads
    assert.ok(slow!.expirations > 0 && slow!.bytes < quick!.bytes, 'the slow reader fell behind')
    const late = await readOutput(idle!, 0)
    assert.ok(late.end?.type === 'error' && 'oldest_available_seq' in late.end, JSON.stringify(late.end))
    const { output } = await processes.get(id)
    assert.ok(output.bytes <= MIB && output.bytes > MIB - EVENT_MAX_BYTES, `${output.bytes} bytes are retained`)
    assert.equal((await readCount(id, output.oldest_seq - 1)).seq, output.newest_seq)
  })

  /** A reader that fell behind the journal continues with what is retained (after 0). Within a stream nothing is lost. */
  async function readAll(
    id: string,
    pauseMs?: number,
  ): Promise<{ bytes: number; expirations: number; end: Followed['end'] }> {
    let bytes = 0
    for (let expirations = 0; ; expirations++) {
      const read = await readCount(id, 0, pauseMs)
      bytes += read.bytes
      if (read.end?.type !== 'error') return { bytes, expirations, end: read.end }
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
      check ??= createCountChecker(seq === 1)
      check(next.value.bytes)
      if (pauseMs !== undefined) await passTime(pauseMs, 'a slow reader')
    }
  }
})

/**
 * Checks that every line is one more than the line before. The first line may be incomplete, unless it is the beginning
 * of the output; the last one too, because the program was killed while it wrote.
 */
function createCountChecker(isBeginning: boolean): (bytes: Buffer) => void {
  let rest = ''
  let previous: string | undefined
  let isComplete = isBeginning
  let expected = isBeginning ? 1 : undefined
  return (bytes) => {
    const lines = (rest + bytes.toString('latin1')).split('\n')
    rest = lines.pop()! // split returns at least one.
    for (const line of lines) {
      if (isComplete && previous !== undefined) {
        expected ??= Number(previous)
        if (previous !== String(expected)) assert.fail(`${previous} instead of ${expected}`)
        expected++
      }
      if (isComplete) previous = line
      isComplete = true
    }
  }
}

/** Managed processes: how soon the first output arrives, how soon a key is echoed, how fast output streams. */
import { errorText } from '@warren/kit/error-text'
import type { BareVm } from '../../../host-agent/src/testing/bare-vm.ts'
import { compareTimes, type Timed, time, turnOf } from '../compare-times.ts'
import { interleave } from '../interleave.ts'
import type { Measurement, Row, Run } from '../row.ts'
import type { GuestAccess } from '../vm/guest-access.ts'
import { BARE_PORT, compareGuests, withSandboxAndBareVm } from '../vm/sandbox-and-bare-vm.ts'

/** In one turn. */
const STARTS = 5
const KEYS = 20
const STREAM_BYTES = 32 * 1024 * 1024
const WARM_UP_ROUNDS = 5

export const processStartRow: Row = {
  name: 'process-start',
  what: 'POST processes of `echo` and connect until its first output, against the same on the port of a bare VM',
  unit: 'ms',
  baseline: BARE_PORT,
  measure: (run) => withSandboxAndBareVm(run, (ours, baseline) => measureStart(run, ours, baseline)),
  comparison: compareGuests(async (run, guest) => {
    for (let round = 0; round < WARM_UP_ROUNDS; round++) await startOnce(guest)
    return async () => turnOf(await repeat(run, STARTS, () => startOnce(guest)))
  }),
}

export const ptyEchoRow: Row = {
  name: 'pty-echo',
  what: 'POST input of one byte until its echo arrives from a terminal, against a ping over the same kind of port',
  unit: 'ms',
  baseline: 'raw virtio-serial round trip',
  target: { ratio: '<=', value: 1, plus: 3 },
  measure: (run) => withSandboxAndBareVm(run, (ours, _, bare) => measureEcho(run, ours, ping(bare))),
  comparison: compareGuests(async (run, guest) => {
    // Not closed: its sandbox is deleted.
    const { pressKey } = await openTerminal(guest)
    for (let round = 0; round < WARM_UP_ROUNDS; round++) await pressKey()
    return async () => turnOf(await repeat(run, KEYS, pressKey))
  }),
}

export const ptyEchoPortRow: Row = {
  name: 'pty-echo-port',
  what: 'the same echo, against the echo of a terminal on the port of a bare VM: the cost of Warren alone',
  unit: 'ms',
  baseline: BARE_PORT,
  measure: (run) =>
    withSandboxAndBareVm(run, (ours, baseline) => withTerminal(baseline, (key) => measureEcho(run, ours, key))),
  comparison: { whyNot: 'it is the same request as in the row pty-echo, with another baseline; compare pty-echo' },
}

export const connectRow: Row = {
  name: 'connect-stream',
  what: `connect to a process that writes ${STREAM_BYTES / 1024 / 1024} MiB as fast as it can, against a bare VM`,
  unit: 'MB/s',
  baseline: BARE_PORT,
  measure: (run) => withSandboxAndBareVm(run, (ours, baseline) => measureStream(run, ours, baseline)),
  comparison: compareGuests(async (run, guest) => {
    await streamOnce(run, guest)
    return async () => {
      const { rate, isComplete } = await streamOnce(run, guest)
      return { samples: [rate], failed: isComplete ? 0 : 1 }
    }
  }),
}

export async function measureStart(run: Run, ours: GuestAccess, baseline: GuestAccess): Promise<Measurement> {
  for (let round = 0; round < WARM_UP_ROUNDS; round++) for (const guest of [ours, baseline]) await startOnce(guest)
  return compareTimes(
    run,
    () => repeat(run, STARTS, () => startOnce(ours)),
    () => repeat(run, STARTS, () => startOnce(baseline)),
  )
}

async function startOnce(guest: GuestAccess): Promise<void> {
  const output = guest.connect(await guest.start({ cmd: 'echo', args: ['x'] }))
  const { done } = await output.next()
  await output.return()
  if (done) throw new Error('the process wrote nothing')
}

type RoundTrip = () => Promise<void>

export function measureEcho(run: Run, ours: GuestAccess, baseline: RoundTrip): Promise<Measurement> {
  return withTerminal(ours, async (pressKey) => {
    for (let round = 0; round < WARM_UP_ROUNDS; round++) for (const trip of [pressKey, baseline]) await trip()
    return compareTimes(
      run,
      () => repeat(run, KEYS, pressKey),
      () => repeat(run, KEYS, baseline),
    )
  })
}

async function repeat(run: Run, count: number, work: () => Promise<void>): Promise<Timed[]> {
  const timed = []
  for (let done = 0; done < count; done++) timed.push(await time(run, work))
  return timed
}

export async function withTerminal<T>(guest: GuestAccess, work: (pressKey: RoundTrip) => Promise<T>): Promise<T> {
  const { pressKey, close } = await openTerminal(guest)
  try {
    return await work(pressKey)
  } finally {
    await close()
  }
}

/** A terminal with a key: pressing it ends when its echo has arrived. */
async function openTerminal(guest: GuestAccess): Promise<{ pressKey: RoundTrip; close(): Promise<void> }> {
  const id = await guest.start({ cmd: 'cat', pty: {} })
  const output = guest.connect(id)
  return {
    async pressKey() {
      // Both at once: the echo may arrive before the response to the input.
      const echoed = output.next()
      const [{ done, value }] = await Promise.all([echoed, guest.input(id, Buffer.from('x'))])
      if (done || value !== 1) throw new Error(`received ${value} bytes for one key`)
    },
    async close() {
      await guest.end(id)
      await output.return()
    },
  }
}

const ping =
  ({ channel: { session } }: BareVm): RoundTrip =>
  () =>
    new Promise((resolve, reject) => session.ping((error) => (error ? reject(error) : resolve())))

async function measureStream(run: Run, ours: GuestAccess, baseline: GuestAccess): Promise<Measurement> {
  for (const guest of [ours, baseline]) await streamOnce(run, guest)
  let complete = 0
  const turns = await interleave(run, {
    async ours() {
      const { rate, isComplete } = await streamOnce(run, ours)
      if (isComplete) complete++
      return rate
    },
    baseline: async () => (await streamOnce(run, baseline)).rate,
  })
  return { ...turns, ok: complete / turns.ours.length }
}

async function streamOnce(run: Run, guest: GuestAccess): Promise<{ rate: number; isComplete: boolean }> {
  // It writes only after its reader has connected and sent a line.
  const id = await guest.start({ cmd: 'sh', args: ['-c', `read go; exec head -c ${STREAM_BYTES} /dev/zero`] })
  const output = guest.connect(id)
  const first = output.next()
  const startedAt = performance.now()
  await guest.input(id, Buffer.from('\n'))
  let bytes = (await first).value ?? 0
  try {
    for await (const size of output) bytes += size
  } catch (error) {
    // On a machine too busy for 4 MiB/s the reader falls behind the journal, and its stream ends with this error.
    if (!/output.offset.expired/.test(errorText(error))) throw error
    run.report(`  a reader fell behind after ${bytes} bytes`)
  }
  const seconds = (performance.now() - startedAt) / 1000
  return { rate: bytes / 1e6 / seconds, isComplete: bytes === STREAM_BYTES }
}

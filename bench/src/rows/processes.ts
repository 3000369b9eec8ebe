/** Managed processes: how soon the first output comes, how soon a key is echoed, how fast output streams. */
import { errorText } from '@warren/kit/text'
import { compareTimes, time } from '../compare-times.ts'
import { interleave } from '../interleave.ts'
import type { Measurement, Row, Run } from '../row.ts'
import type { Door } from '../vm/door.ts'
import { BARE_PORT, withTwoDoors } from '../vm/two-doors.ts'

/** In one turn. */
const STARTS = 5
const KEYS = 20
const STREAM_BYTES = 32 * 1024 * 1024
const WARM_UP_ROUNDS = 5

export const processStartRow: Row = {
  name: 'process-start',
  what: 'POST processes of `echo` and connect until its first output, against the same on the port of a bare machine',
  unit: 'ms',
  baseline: BARE_PORT,
  measure: (run) => withTwoDoors(run, (ours, baseline) => measureStart(run, ours, baseline)),
}

export const ptyEchoRow: Row = {
  name: 'pty-echo',
  what: 'POST input of one byte until its echo comes from a terminal, against a ping over the same kind of port',
  unit: 'ms',
  baseline: 'raw virtio-serial round trip',
  target: { ratio: '<=', value: 1, plus: 3 },
  measure: measureEcho,
}

export const connectRow: Row = {
  name: 'connect-stream',
  what: `connect to a process that writes ${STREAM_BYTES / 1024 / 1024} MiB as fast as it can, against a bare machine`,
  unit: 'MB/s',
  baseline: BARE_PORT,
  measure: (run) => withTwoDoors(run, (ours, baseline) => measureStream(run, ours, baseline)),
}

async function measureStart(run: Run, ours: Door, baseline: Door): Promise<Measurement> {
  const startOnce = async (door: Door) => {
    const output = door.connect(await door.start({ cmd: 'echo', args: ['x'] }))
    const { done } = await output.next()
    await output.return()
    if (done) throw new Error('it wrote nothing')
  }
  const startMany = async (door: Door) => {
    const timed = []
    for (let count = 0; count < STARTS; count++) timed.push(await time(run, () => startOnce(door)))
    return timed
  }
  for (let round = 0; round < WARM_UP_ROUNDS; round++) for (const door of [ours, baseline]) await startOnce(door)
  return compareTimes(
    run,
    () => startMany(ours),
    () => startMany(baseline),
  )
}

function measureEcho(run: Run): Promise<Measurement> {
  return withTwoDoors(run, async (ours, _, bare) => {
    const id = await ours.start({ cmd: 'cat', pty: {} })
    const output = ours.connect(id)
    const pressKey = async () => {
      // Both at once: the echo may come before the answer to the input does.
      const [{ done, value }] = await Promise.all([output.next(), ours.input(id, Buffer.from('x'))])
      if (done || value !== 1) throw new Error(`${value} bytes came for one key`)
    }
    const ping = () =>
      new Promise<void>((resolve, reject) => bare.channel.session.ping((error) => (error ? reject(error) : resolve())))
    const many = async (once: () => Promise<void>) => {
      const timed = []
      for (let count = 0; count < KEYS; count++) timed.push(await time(run, once))
      return timed
    }
    for (let round = 0; round < WARM_UP_ROUNDS; round++) for (const once of [pressKey, ping]) await once()
    try {
      return await compareTimes(
        run,
        () => many(pressKey),
        () => many(ping),
      )
    } finally {
      await ours.end(id)
      await output.return()
    }
  })
}

async function measureStream(run: Run, ours: Door, baseline: Door): Promise<Measurement> {
  let whole = 0
  const rateOf = async (door: Door) => {
    // It begins when its reader is there.
    const id = await door.start({ cmd: 'sh', args: ['-c', `read go; exec head -c ${STREAM_BYTES} /dev/zero`] })
    const output = door.connect(id)
    const first = output.next()
    const startedAt = performance.now()
    await door.input(id, Buffer.from('\n'))
    let bytes = (await first).value ?? 0
    try {
      for await (const size of output) bytes += size
    } catch (error) {
      // On a machine so busy that 4 MiB/s do not come through, a reader falls behind the journal and is told so.
      if (!/output.offset.expired/.test(errorText(error))) throw error
      run.say(`  a reader fell behind after ${bytes} bytes`)
    }
    if (door === ours && bytes === STREAM_BYTES) whole++
    return bytes / 1e6 / ((performance.now() - startedAt) / 1000)
  }
  for (const door of [ours, baseline]) await rateOf(door)
  whole = 0
  const turns = await interleave(run, { ours: () => rateOf(ours), baseline: () => rateOf(baseline) })
  return { ...turns, ok: whole / turns.ours.length }
}

/** What a command costs from outside, against what it costs inside the guest. */
import { compareTimes, time } from '../compare-times.ts'
import type { Measurement, Row, Run } from '../row.ts'
import { SMALL, vmBox } from '../vm/box.ts'

/** In one turn. */
const CALLS = 20
const CALLS_INSIDE = 50

export const execRow: Row = {
  name: 'exec',
  what: 'POST exec of `true` in a running sandbox, against a shell that runs it in the same guest',
  unit: 'ms',
  baseline: 'fork+exec inside',
  target: { ratio: '<=', value: 1.5, plus: 3 },
  measure: measureExec,
}

async function measureExec(run: Run): Promise<Measurement> {
  const { api } = await run.open(vmBox)
  const { id } = await api.create(SMALL)
  try {
    const execOnce = () => time(run, () => api.exec(id, '/bin/true'))
    const inGuest = async () => {
      const { stdout } = await api.sh(id, FORK_AND_EXEC)
      const [from, to] = stdout.trim().split(' ').map(Number)
      return { ms: ((to! - from!) * 1000) / CALLS_INSIDE, ok: to! > from! } // Two numbers, or neither is greater.
    }
    // Until what both run is in the guest's memory and translated.
    for (let round = 0; round < 5; round++) {
      await execOnce()
      await inGuest()
    }
    const execMany = async () => {
      const timed = []
      for (let call = 0; call < CALLS; call++) timed.push(await execOnce())
      return timed
    }
    return await compareTimes(run, execMany, inGuest)
  } finally {
    await api.delete(id)
  }
}

/**
 * A shell that forks as lightly as there is (dash uses vfork). The kernel tells its uptime in hundredths of a second,
 * so that a sample is the mean of many calls; the loop around them is a thousandth of it.
 */
const FORK_AND_EXEC = `
read from rest </proc/uptime
i=0; while [ $i -lt ${CALLS_INSIDE} ]; do /bin/true; i=$((i + 1)); done
read to rest </proc/uptime
echo $from $to`

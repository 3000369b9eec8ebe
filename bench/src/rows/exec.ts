/** What a command costs through the API, against what it costs inside the guest. */
import { compareTimes, type Timed, time, turnOf } from '../compare-times.ts'
import type { Measurement, Row, Run, Subject } from '../row.ts'
import type { Api } from '../vm/api.ts'
import { instance, SMALL } from '../vm/instance.ts'

/** In one turn. */
const CALLS = 20
const CALLS_INSIDE = 50
/** Until what runs is in the guest's memory and, under emulation, translated. */
const WARM_UP_ROUNDS = 5

export const execRow: Row = {
  name: 'exec',
  what: 'POST exec of `true` in a running sandbox, against a shell that runs it in the same guest',
  unit: 'ms',
  baseline: 'fork+exec inside',
  target: { ratio: '<=', value: 1.5, plus: 3 },
  measure: measureExec,
  comparison: { open: openExec },
}

async function measureExec(run: Run): Promise<Measurement> {
  const { api } = await run.open(instance)
  const { id } = await api.create(SMALL)
  try {
    const runInGuest = async () => {
      const { stdout } = await api.sh(id, FORK_AND_EXEC)
      const [from, to] = stdout.trim().split(' ').map(Number)
      return { ms: ((to! - from!) * 1000) / CALLS_INSIDE, ok: to! > from! } // False unless both are numbers.
    }
    for (let round = 0; round < WARM_UP_ROUNDS; round++) {
      await execOnce(run, api, id)
      await runInGuest()
    }
    return await compareTimes(run, () => execMany(run, api, id), runInGuest)
  } finally {
    await api.delete(id)
  }
}

async function openExec(run: Run, api: Api): Promise<Subject> {
  const { id } = await api.create(SMALL)
  for (let round = 0; round < WARM_UP_ROUNDS; round++) await execMany(run, api, id)
  return {
    takeTurn: async () => turnOf(await execMany(run, api, id)),
    close: () => api.delete(id),
  }
}

async function execMany(run: Run, api: Api, id: string): Promise<Timed[]> {
  const timed = []
  for (let call = 0; call < CALLS; call++) timed.push(await execOnce(run, api, id))
  return timed
}

const execOnce = (run: Run, api: Api, id: string): Promise<Timed> => time(run, () => api.exec(id, '/bin/true'))

/**
 * A shell that forks at the least cost (dash uses vfork). The kernel reports its uptime in hundredths of a second, so a
 * sample is the mean of many calls; the loop around them is a thousandth of it.
 */
const FORK_AND_EXEC = `
read from rest </proc/uptime
i=0; while [ $i -lt ${CALLS_INSIDE} ]; do /bin/true; i=$((i + 1)); done
read to rest </proc/uptime
echo $from $to`

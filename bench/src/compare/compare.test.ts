import assert from 'node:assert/strict'
import { test } from 'node:test'
import { runBench, type Versions } from '../cli.ts'
import type { Comparison, Row } from '../row.ts'
import type { Api } from '../vm/api.ts'

/** Stands for the API of an instance: made-up rows only look at which side it is. */
const fakeApi = (side: string) => ({ side }) as unknown as Api
const sideOf = (api: Api) => (api as unknown as { side: 'old' | 'new' }).side

const COMMIT = 'f'.repeat(40)

/** Records what is prepared and started. */
function createVersions(events: string[] = []): Versions {
  return {
    findCommit: async (name) => (name === 'known' ? COMMIT : undefined),
    async prepare(run, commit) {
      events.push(`check out ${commit.slice(0, 4)}`)
      run.defer(() => void events.push('remove checkout'))
      return {
        labels: { old: commit, new: 'working tree' },
        async startSide(sideRun, side, env) {
          events.push(`start ${side}${env ? ` ${JSON.stringify(env)}` : ''}`)
          sideRun.defer(() => void events.push(`stop ${side}`))
          return { api: fakeApi(side), dataDir: '' }
        },
      }
    },
  }
}

function createRow(name: string, comparison: Row['comparison'], unit: Row['unit'] = 'ms'): Row {
  return { name, what: 'a made-up row', unit, baseline: '', measure: () => assert.fail('not compared'), comparison }
}

/** Takes 10 ms on the old side and `newMs` on the new one. */
const takes = (newMs: number, more: Partial<Comparison> = {}): Comparison => ({
  pace: () => ({ rounds: 8 }),
  open: async (_run, api) => ({
    takeTurn: async () => ({ samples: [sideOf(api) === 'old' ? 10 : newMs], failed: 0 }),
    async close() {},
  }),
  ...more,
})

async function compare(rows: Row[], args: string[], versions = createVersions()) {
  const printed = { out: '', err: '' }
  const output = {
    out: (text: string) => {
      printed.out += text
    },
    err: (text: string) => {
      printed.err += text
    },
  }
  const exitCode = await runBench(rows, args, output, new AbortController().signal, versions)
  return { exitCode, ...printed }
}

test('a comparison prints both medians, the ratio with its interval, and a verdict', async () => {
  const rows = [createRow('quick', takes(5)), createRow('rate', takes(5), 'req/s'), createRow('same', takes(10))]

  const { exitCode, out } = await compare(rows, ['--compare', 'known'])

  assert.equal(exitCode, 0)
  assert.equal(
    out,
    [
      `old: ${COMMIT}`,
      'new: working tree',
      '',
      'row    unit   rounds  n  median old  median new  new/old  95 % interval   verdict',
      'quick  ms          8  8       10.00        5.00    0.500  0.500 to 0.500  faster',
      'rate   req/s       8  8       10.00        5.00    0.500  0.500 to 0.500  slower',
      'same   ms          8  8       10.00       10.00    1.000  1.000 to 1.000  no difference shown',
      '',
    ].join('\n'),
  )
})

test('with --json stdout has one object per compared row', async () => {
  const { out } = await compare([createRow('quick', takes(5))], ['--compare', 'known', '--json'])

  assert.deepEqual(JSON.parse(out), {
    name: 'quick',
    unit: 'ms',
    rounds: 8,
    samples: { old: 8, new: 8 },
    median: { old: 10, new: 5 },
    ratio: 0.5,
    interval: { low: 0.5, high: 0.5 },
    verdict: 'faster',
    failed: { old: 0, new: 0 },
  })
})

test('the two versions take turns, and the first of a round changes', async () => {
  const order: string[] = []
  const comparison: Comparison = {
    pace: () => ({ rounds: 3 }),
    open: async (_run, api) => ({
      async takeTurn() {
        order.push(sideOf(api))
        return { samples: [1], failed: 0 }
      },
      close: async () => void order.push(`close ${sideOf(api)}`),
    }),
  }

  await compare([createRow('row', comparison)], ['--compare', 'known'])

  assert.deepEqual(order, ['old', 'new', 'new', 'old', 'old', 'new', 'close old', 'close new'])
})

test('rows with the same settings share the instances, and everything is removed at the end', async () => {
  const events: string[] = []
  const cold = takes(10, { env: { WARREN_STANDBY_MIB: '0' } })

  await compare(
    [createRow('a', takes(10)), createRow('b', takes(10)), createRow('cold', cold)],
    ['--compare', 'known'],
    createVersions(events),
  )

  assert.deepEqual(events, [
    'check out ffff',
    'start old',
    'start new',
    'start old {"WARREN_STANDBY_MIB":"0"}',
    'start new {"WARREN_STANDBY_MIB":"0"}',
    'stop new',
    'stop old',
    'stop new',
    'stop old',
    'remove checkout',
  ])
})

test('a row that cannot be compared says why, and is a failure only when it was named', async () => {
  const rows = [createRow('inside', { whyNot: 'it has no API' }), createRow('quick', takes(5))]

  const all = await compare(rows, ['--compare', 'known', '--json'])
  const named = await compare(rows, ['--compare', 'known', '--json', 'inside', 'quick'])

  for (const { out, err } of [all, named]) {
    assert.equal(JSON.parse(out).name, 'quick')
    assert.match(err, /^bench: inside cannot be compared: it has no API$/m)
  }
  assert.deepEqual([all.exitCode, named.exitCode], [0, 1])
})

test('nothing is checked out when no row can be compared', async () => {
  const events: string[] = []
  const rows = [createRow('inside', { whyNot: 'it has no API' })]

  const { exitCode } = await compare(rows, ['--compare', 'known', 'inside'], createVersions(events))

  assert.equal(exitCode, 1)
  assert.deepEqual(events, [])
})

test('failed attempts make a comparison invalid', async () => {
  const open: Comparison['open'] = async (_run, api) => ({
    takeTurn: async () => ({ samples: [1], failed: sideOf(api) === 'new' ? 1 : 0 }),
    async close() {},
  })

  const { exitCode, out } = await compare([createRow('row', takes(1, { open }))], ['--compare', 'known'])

  assert.equal(exitCode, 1)
  assert.match(out, /invalid: attempts failed \(old 0, new 8\)$/m)
})

test('an unknown commit is a usage error', async () => {
  const { exitCode, out, err } = await compare([createRow('quick', takes(5))], ['--compare', 'nowhere'])

  assert.equal(exitCode, 2)
  assert.equal(out, '')
  assert.equal(err, 'bench: "nowhere" is not a commit of this repository; give a hash, a branch or a tag\n')
})

test('a version that cannot be prepared is reported, and what was started is removed', async () => {
  const events: string[] = []
  const versions = createVersions(events)
  const broken: Versions = {
    ...versions,
    async prepare(run, commit) {
      await versions.prepare(run, commit)
      throw new Error('npm ci failed')
    },
  }

  const { exitCode, err } = await compare([createRow('quick', takes(5))], ['--compare', 'known'], broken)

  assert.equal(exitCode, 1)
  assert.match(err, /^bench: failed to prepare: npm ci failed$/m)
  assert.deepEqual(events, ['check out ffff', 'remove checkout'])
})

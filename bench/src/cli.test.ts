import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import path from 'node:path'
import { test } from 'node:test'
import { runBench, type Versions } from './cli.ts'
import type { Row, Run } from './row.ts'
import { Skip } from './skip.ts'

const quick: Row = {
  name: 'quick',
  what: 'a made-up row',
  unit: 'ms',
  baseline: 'something slower',
  target: { ratio: '<=', value: 2 },
  measure: async () => ({ ours: [3, 1, 2], baseline: [4, 4, 4], ok: 1 }),
  comparison: { whyNot: 'it is made up' },
}
const slow: Row = {
  ...quick,
  name: 'slower-than-it-should-be',
  unit: 'req/s',
  target: { ratio: '>=', value: 0.5 },
  measure: async () => ({ ours: [12_345], baseline: [50_000], ok: 0.99999 }),
}
const untargeted: Row = { ...quick, name: 'untargeted', target: undefined }
const broken: Row = {
  ...quick,
  name: 'broken',
  measure: async () => {
    throw new Error('no candidate', { cause: new Error('it is gone') })
  },
}

const NO_VERSIONS: Versions = {
  findCommit: async () => undefined,
  prepare: () => assert.fail('nothing is compared'),
}

async function bench(rows: Row[], args: string[], signal = new AbortController().signal, versions = NO_VERSIONS) {
  let out = ''
  let err = ''
  const output = {
    out: (text: string) => {
      out += text
    },
    err: (text: string) => {
      err += text
    },
  }
  const exitCode = await runBench(rows, args, output, signal, versions)
  return { exitCode, out, err }
}

test('with --json stdout has one object per row and nothing else', async () => {
  const { exitCode, out, err } = await bench([quick, slow], ['--json'])

  assert.equal(exitCode, 0)
  const lines = out.trimEnd().split('\n')
  assert.deepEqual(
    lines.map((line) => JSON.parse(line)),
    [
      {
        name: 'quick',
        unit: 'ms',
        n: 3,
        ok: 1,
        p50: 2,
        p95: 3,
        p99: 3,
        max: 3,
        baseline: { name: 'something slower', p50: 4 },
        ratio: 0.5,
      },
      {
        name: 'slower-than-it-should-be',
        unit: 'req/s',
        n: 1,
        ok: 0.99999,
        p50: 12_345,
        p95: 12_345,
        p99: 12_345,
        max: 12_345,
        baseline: { name: 'something slower', p50: 50_000 },
        ratio: 0.2469,
      },
    ],
  )
  assert.match(err, /^quick: a made-up row$/m)
})

test('without --json stdout has a table with the targets, and a missed target is not a failure', async () => {
  const { exitCode, out } = await bench([quick, slow, untargeted], [])

  assert.equal(exitCode, 0)
  assert.equal(
    out,
    [
      'row                       unit   n       ok    p50    p95    p99    max  baseline          its p50  ratio  target',
      'quick                     ms     3    100 %   2.00   3.00   3.00   3.00  something slower     4.00   0.50  <= 2 met',
      'slower-than-it-should-be  req/s  1  99.99 %  12345  12345  12345  12345  something slower    50000   0.25  >= 0.5 NOT met',
      'untargeted                ms     3    100 %   2.00   3.00   3.00   3.00  something slower     4.00   0.50',
      '',
    ].join('\n'),
  )
})

test('only the named rows run', async () => {
  const { out } = await bench([quick, slow, broken], ['--json', 'slower-than-it-should-be'])

  assert.equal(JSON.parse(out).name, 'slower-than-it-should-be')
})

test('a row that fails is reported, and the others are still measured', async () => {
  const { exitCode, out, err } = await bench([broken, quick], ['--json'])

  assert.equal(exitCode, 1)
  assert.equal(JSON.parse(out).name, 'quick')
  assert.match(err, /^bench: failed to measure broken: no candidate: it is gone$/m)
})

test('a row that this machine cannot run is skipped with the reason, which is not a failure', async () => {
  const elsewhere: Row = {
    ...quick,
    name: 'elsewhere',
    measure: async () => {
      throw new Skip('virtual machines need root')
    },
  }

  const { exitCode, out, err } = await bench([elsewhere, quick], ['--json'])

  assert.equal(exitCode, 0)
  assert.equal(JSON.parse(out).name, 'quick')
  assert.match(err, /^bench: skipped elsewhere: virtual machines need root$/m)
})

test('an opt-in row runs only when it is named', async () => {
  const huge: Row = { ...quick, name: 'huge', optIn: true }

  const all = await bench([huge, quick], ['--json'])
  const named = await bench([huge, quick], ['--json', 'huge'])

  assert.equal(JSON.parse(all.out).name, 'quick')
  assert.equal(JSON.parse(named.out).name, 'huge')
})

test('a target may allow a constant on top of the ratio, or be a fixed number', async () => {
  const { out } = await bench(
    [
      { ...quick, name: 'on-top', target: { ratio: '<=', value: 0.25, plus: 1 } },
      { ...quick, name: 'promised', target: { p50: '<=', value: 1.5 } },
    ],
    [],
  )

  assert.match(out, /^on-top .* <= 0\.25 x \+ 1 ms met$/m)
  assert.match(out, /^promised .* p50 <= 1\.5 ms NOT met$/m)
})

test('an unknown row or option is a usage error that names what exists', async () => {
  const row = await bench([quick, slow], ['quick', 'quack'])
  const option = await bench([quick], ['--fast'])
  const seconds = await bench([quick], ['--seconds', 'ten'])

  assert.deepEqual([row.exitCode, option.exitCode, seconds.exitCode], [2, 2, 2])
  assert.match(row.err, /no row quack; the rows are quick, slower-than-it-should-be/)
  assert.match(option.err, /--fast/)
  assert.match(seconds.err, /--seconds <n>' argument 'ten' is invalid\. It must be a number above 0 and at most 3600/)
  assert.equal(row.out + option.out + seconds.out, '')
})

test('fixtures are shared by rows and stopped in reverse order, also after a failure', async () => {
  const events: string[] = []
  const database = async (run: Run) => {
    events.push('start database')
    run.defer(() => void events.push('stop database'))
    return 'database'
  }
  const server = async (run: Run) => {
    const below = await run.open(database)
    events.push(`start server on ${below}`)
    run.defer(async () => void events.push('stop server'))
    return 'server'
  }
  const onServer = (row: Row): Row => ({
    ...row,
    async measure(run) {
      events.push(`${row.name} on ${await run.open(server)}`)
      return row.measure(run)
    },
  })

  await bench([onServer(quick), onServer(broken)], [])

  assert.deepEqual(events, [
    'start database',
    'start server on database',
    'quick on server',
    'broken on server',
    'stop server',
    'stop database',
  ])
})

test('an interrupted run stops what it started and runs no further row', async () => {
  const stopping = new AbortController()
  const events: string[] = []
  const interrupted: Row = {
    ...quick,
    async measure(run) {
      run.defer(() => void events.push('stopped'))
      stopping.abort(new Error('stopped by SIGINT'))
      run.signal.throwIfAborted()
      return quick.measure(run)
    },
  }

  const { exitCode, out, err } = await bench([interrupted, slow], ['--json'], stopping.signal)

  assert.equal(exitCode, 1)
  assert.deepEqual(events, ['stopped'])
  assert.equal(out, '')
  assert.match(err, /^bench: interrupted: stopped by SIGINT$/m)
})

test('the program lists its rows and rejects unknown ones', () => {
  const main = path.join(import.meta.dirname, 'main.ts')
  const run = (...args: string[]) => spawnSync(process.execPath, [main, ...args], { encoding: 'utf8' })

  const list = run('--list')
  const unknown = run('no-such-row')

  assert.equal(list.status, 0)
  assert.deepEqual(
    list.stdout
      .trimEnd()
      .split('\n')
      .map((line) => line.split(' ')[0]),
    [
      ...['create', 'create-burst-10', 'create-burst-20', 'create-vs-boot', 'exec', 'push', 'pull'],
      ...[
        'process-start',
        'pty-echo',
        'pty-echo-port',
        'connect-stream',
        'tunnel-trip',
        'tunnel-down',
        'tunnel-up',
        'tunnels-100',
        'ingress-trip',
        'ingress-rate',
        'native-create',
        'native-create-rate',
        'native-create-cpu',
        'native-exec',
        'native-exec-rate',
        'native-process-start',
        'native-pty-echo',
        'native-push',
        'native-pull',
        'native-tunnel-trip',
        'native-tunnel-down',
        'native-tunnel-up',
        'native-ingress-trip',
        'native-ingress-rate',
        'gateway-verify',
        'gateway-deploy',
        'gateway-proxy',
      ],
      ...['idle-memory', 'vmm-memory', 'upload-memory', 'upload-10g', 'metrics-sampling'],
      ...[
        'pause-13m',
        'pause-115m',
        'pause-100th',
        'pause-bytes',
        'resume',
        'resume-cold',
        'fork',
        'fork-10',
        'fork-live',
        'resize-10g',
      ],
      ...['template-build', 'template-rebuild', 'template-create'],
      ...['net-setup', 'net-teardown', 'net-claim', 'net-rules-1000', 'net-out', 'net-out-rules', 'net-out-proxy'],
      ...['net-1000-ask', 'net-1000-change', 'net-1000-claim'],
      ...['webhooks', 'whoami', 'get-sandbox', 'list-1m', 'list-1m-status', 'account-metrics', 'account-series'],
    ],
  )
  assert.equal(unknown.status, 2)
  assert.match(unknown.stderr, /there is no row no-such-row/)
})

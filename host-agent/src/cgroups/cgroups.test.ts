import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { appendFile, mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { randomInstance } from '../net/testing/host.ts'
import { openCgroups, parseCpuStat } from './cgroups.ts'
import { findDisk } from './io.ts'
import { findCgroupLayout } from './layout.ts'
import { cpuQuota } from './limits.ts'

const layout = await findCgroupLayout()
const INSTANCE = randomInstance()

test('a whole core or more has a period of 100 ms, a fraction one of 20 ms', () => {
  assert.deepEqual(cpuQuota(100), { quotaUs: 100_000, periodUs: 100_000 })
  assert.deepEqual(cpuQuota(250), { quotaUs: 250_000, periodUs: 100_000 })
  assert.deepEqual(cpuQuota(25), { quotaUs: 5_000, periodUs: 20_000 })
  assert.throws(() => cpuQuota(1), /below the kernel's shortest quota/)
})

test('a hybrid machine uses version 1, and version 2 needs both controllers', async (t) => {
  const root = await folder(t)
  const mounts = `cgroup /v1/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\ncgroup /v1/memory cgroup rw,memory 0 0\ncgroup2 ${root} cgroup2 rw 0 0\n`

  await writeFile(join(root, 'cgroup.controllers'), 'hugetlb\n')
  const hybrid = await findCgroupLayout(mounts)
  await writeFile(join(root, 'cgroup.controllers'), 'cpuset cpu io memory pids\n')
  const unified = await findCgroupLayout(mounts)

  assert.deepEqual(hybrid, { version: 1, cpu: '/v1/cpu,cpuacct', memory: '/v1/memory', cpuacct: '/v1/cpu,cpuacct' })
  assert.deepEqual(unified, { version: 2, root, io: true, pids: true })
  assert.equal(await findCgroupLayout('tmpfs /tmp tmpfs rw 0 0\n'), undefined)
})

test('version 2: limits are written to the files of the cgroup, and usage is read from them', async (t) => {
  const root = await folder(t)
  const cgroups = await openCgroups({ version: 2, root }, INSTANCE)
  const group = join(root, `warren-${INSTANCE}`, 'sb-1')

  await mkdir(group, { recursive: true })
  await writeFile(join(group, 'memory.swap.max'), 'max')
  const { procs } = await cgroups.create('sb-1', { memoryBytes: 320 * 1024 ** 2, threads: 10 })
  await cgroups.limitCpu('sb-1', 50)
  await writeFile(join(group, 'cpu.stat'), 'usage_usec 1234\nuser_usec 1000\nsystem_usec 234\n')

  assert.deepEqual(procs, [join(group, 'cgroup.procs')])
  assert.equal(await readFile(join(root, 'cgroup.subtree_control'), 'utf8'), '+cpu +memory')
  assert.equal(await readFile(join(root, `warren-${INSTANCE}`, 'cgroup.subtree_control'), 'utf8'), '+cpu +memory')
  assert.equal(await readFile(join(group, 'memory.max'), 'utf8'), '335544320')
  assert.equal(await readFile(join(group, 'memory.swap.max'), 'utf8'), '0')
  assert.equal(await readFile(join(group, 'cpu.max'), 'utf8'), '10000 20000')
  assert.equal(cgroups.readCpuNs('sb-1'), 1_234_000)
  assert.deepEqual(await cgroups.list(), ['sb-1'])
  assert.throws(() => parseCpuStat('nr_periods 1\n'), /no usage_usec/)
})

test('version 2: the parent is limited, but never below what its VMMs use already', async (t) => {
  const root = await folder(t)
  const parent = join(root, `warren-${INSTANCE}`)
  const limit = () => readFile(join(parent, 'memory.max'), 'utf8')

  await openCgroups({ version: 2, root }, INSTANCE, { totalBytes: 4_000 })
  assert.equal(await limit(), '4000')
  await writeFile(join(parent, 'memory.current'), '5000\n')
  await openCgroups({ version: 2, root }, INSTANCE, { totalBytes: 4_000 })
  assert.equal(await limit(), '5000')
})

test('version 2: all VMMs together weigh half of what else uses the disk, and each can be limited', async (t) => {
  const root = await folder(t)
  const parent = join(root, `warren-${INSTANCE}`)
  const group = join(parent, 'sb-1')
  for (const one of [parent, group]) {
    await mkdir(one, { recursive: true })
    for (const file of ['io.weight', 'io.bfq.weight']) await writeFile(join(one, file), 'default 100')
  }
  const io = { disk: '8:0', bytesPerSecond: 50 * 1024 ** 2 }

  const cgroups = await openCgroups({ version: 2, root, io: true, pids: true }, INSTANCE, { io })
  await cgroups.create('sb-1', { memoryBytes: 4096, threads: 10 })
  await cgroups.setBackground('sb-1', true)

  assert.equal(await readFile(join(parent, 'cgroup.subtree_control'), 'utf8'), '+cpu +memory +io +pids')
  assert.equal(await readFile(join(group, 'pids.max'), 'utf8'), '10')
  for (const file of ['io.weight', 'io.bfq.weight']) {
    assert.equal(await readFile(join(parent, file), 'utf8'), '50')
    assert.equal(await readFile(join(group, file), 'utf8'), '1')
  }
  assert.equal(await readFile(join(group, 'io.max'), 'utf8'), '8:0 rbps=52428800 wbps=52428800')
})

test('version 2: kills are counted by the kernel', async (t) => {
  const root = await folder(t)
  const cgroups = await openCgroups({ version: 2, root }, INSTANCE)
  await cgroups.create('sb-1', { memoryBytes: 4096, threads: 10 })
  const events = join(root, `warren-${INSTANCE}`, 'sb-1', 'memory.events')

  await writeFile(events, 'low 0\noom 1\noom_kill 1\n')

  assert.deepEqual(await cgroups.findMemoryEvents('sb-1'), { killed: 1, limitBytes: 4096 })
  assert.equal(await cgroups.findMemoryEvents('sb-none'), undefined)
})

test('an id that would leave the folder is refused', async (t) => {
  const root = await folder(t)
  const cgroups = await openCgroups({ version: 2, root }, INSTANCE)

  await assert.rejects(cgroups.create('../x', { memoryBytes: 1, threads: 10 }), /is not a valid cgroup name/)
})

const skip = process.getuid?.() !== 0 ? 'needs root' : layout === undefined ? 'no cgroups on this machine' : false

test('a process is limited and measured, and its cgroup is removed after it', { skip }, async (t) => {
  const cgroups = await openCgroups(layout!, INSTANCE)
  const { procs } = await cgroups.create('sb-2', { memoryBytes: 64 * 1024 ** 2, threads: 10 })
  const child = spawn('sh', ['-c', 'while :; do x=$x$x.; x=; done'])
  t.after(async () => {
    child.kill('SIGKILL')
    await cgroups.remove('sb-2')
    await cgroups.close()
  })
  for (const path of procs) await appendFile(path, `${child.pid}`)
  for (const percent of [25, 200, 25]) await cgroups.limitCpu('sb-2', percent)

  await until(() => cgroups.readCpuNs('sb-2') > 10_000_000, 'the process has used 10 ms of CPU time')

  assert.deepEqual(await cgroups.list(), ['sb-2'])
  child.kill('SIGKILL')
  await cgroups.remove('sb-2')
  await cgroups.remove('sb-2')
  assert.deepEqual(await cgroups.list(), [])
})

test('a process that exceeds its memory is killed, which is counted, and its neighbour is not', { skip }, async (t) => {
  const cgroups = await openCgroups(layout!, INSTANCE)
  const groups = await Promise.all(
    ['sb-3', 'sb-4'].map((id) => cgroups.create(id, { memoryBytes: 32 * 1024 ** 2, threads: 10 })),
  )
  // Each waits for its cgroup before it allocates.
  const children = [256, 4].map((mib) =>
    spawn('perl', ['-e', `<STDIN>; my $x = "x" x (${mib} << 20); print "done"; sleep 60`]),
  )
  t.after(async () => {
    for (const child of children) child.kill('SIGKILL')
    for (const id of ['sb-3', 'sb-4']) await cgroups.remove(id)
    await cgroups.close()
  })
  for (const [i, { procs }] of groups.entries()) {
    for (const path of procs) await appendFile(path, `${children[i]!.pid}`)
  }

  const exited = once(children[0]!, 'exit')
  for (const child of children) child.stdin.write('\n')

  assert.deepEqual(await exited, [null, 'SIGKILL'])
  assert.deepEqual(await cgroups.findMemoryEvents('sb-3'), { killed: 1, limitBytes: 32 * 1024 ** 2 })
  assert.deepEqual(await cgroups.findMemoryEvents('sb-4'), { killed: 0, limitBytes: 32 * 1024 ** 2 })
  assert.equal(children[1]!.exitCode, null)
})

const skipPids = skip || (layout?.pids === undefined ? 'the kernel cannot count processes' : false)

test('a process cannot have more threads and processes than its cgroup allows', { skip: skipPids }, async (t) => {
  const cgroups = await openCgroups(layout!, INSTANCE)
  const { procs } = await cgroups.create('sb-6', { memoryBytes: 64 * 1024 ** 2, threads: 10 })
  // It waits for its cgroup, then starts children until the kernel refuses one.
  const forks =
    'my $n = 0; while ($n < 100) { my $p = fork; last if !defined $p; if (!$p) { sleep 60; exit } $n++; push @p, $p }'
  const child = spawn('perl', ['-e', `my @p; <STDIN>; ${forks} kill "KILL", @p; print $n`])
  t.after(async () => {
    child.kill('SIGKILL')
    await cgroups.remove('sb-6')
    await cgroups.close()
  })
  for (const path of procs) await appendFile(path, `${child.pid}`)

  child.stdin.write('\n')

  assert.equal((await child.stdout.toArray()).join(''), '9')
})

const ioRoot = layout?.version === 2 ? (layout.io ? layout.root : undefined) : layout?.blkio
const disk = findDisk(process.cwd())
const skipIo = skip || (ioRoot !== undefined && disk !== undefined ? false : 'the kernel cannot limit this disk')

test('the kernel limits reads and writes of a cgroup on the disk of a folder', { skip: skipIo }, async (t) => {
  const io = { disk: disk!, bytesPerSecond: 4 * 1024 ** 2 }
  const cgroups = await openCgroups(layout!, INSTANCE, { io })
  t.after(async () => {
    await cgroups.remove('sb-5')
    await cgroups.close()
  })

  const { procs } = await cgroups.create('sb-5', { memoryBytes: 64 * 1024 ** 2, threads: 10 })

  const group = join(ioRoot!, `warren-${INSTANCE}`, 'sb-5')
  assert.ok(procs.includes(join(group, 'cgroup.procs')))
  const read = (file: string) => readFile(join(group, file), 'utf8')
  if (layout!.version === 2) assert.match(await read('io.max'), /rbps=4194304 wbps=4194304/)
  else {
    for (const file of ['blkio.throttle.read_bps_device', 'blkio.throttle.write_bps_device']) {
      assert.equal(await read(file), `${disk} 4194304\n`)
    }
  }
})

async function folder(t: { after: (fn: () => Promise<void>) => void }): Promise<string> {
  const path = await mkdtemp(join(tmpdir(), 'warren-cgroups-'))
  t.after(() => rm(path, { recursive: true }))
  await mkdir(path, { recursive: true })
  return path
}

/** The memory of a VMM: a limit that a sandbox can live with, and what happens to the one that exceeds it. */
import assert from 'node:assert/strict'
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { describe, test } from 'node:test'
import { findProgram } from '@warren/kit/testing/find-program'
import { until } from '@warren/kit/testing/until'
import { SHAPES, vmmMemoryMib } from '@warren/protocol'
import { getPostmasterPid } from './support/instance.ts'
import {
  createSandbox,
  destroySandbox,
  forkSandbox,
  getSandbox,
  pauseSandbox,
  resumeSandbox,
  runShell,
  waitForStatus,
} from './support/sandboxes.ts'
import {
  accelerationOf,
  cannotRunVms,
  findQemuPid,
  SOAK,
  startUnlessSkipped,
  startVmInstance,
  VM_STORIES_LIMIT_MS,
} from './support/vm-instance.ts'

const MIB = 1024 * 1024
/** The others boot slowly under emulation. */
const TESTED_SHAPES = SHAPES.filter(({ id, mem_mib }) =>
  SOAK ? mem_mib <= 8192 : ['s-1vcpu-256mb', 's-1vcpu-1gb'].includes(id),
)

/** Reading all of it takes long under emulation. */
const SUM = 'stat -c %s /dev/shm/full; tail -c 1048576 /dev/shm/full | sha256sum'

const warren = await startUnlessSkipped(cannotRunVms, () => startVmInstance())

describe('the memory of a VMM', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  test('is limited to that of its guest and what QEMU needs, without swap, and reserved exactly', async () => {
    const before = await freeMib()
    const { id } = await createSandbox(warren)

    const group = memoryGroupOf(id)
    const limitMib = vmmMemoryMib({ vcpu: 1, mem_mib: 256 }, accelerationOf(warren, id))
    assert.equal(group.limitBytes, limitMib * MIB)
    assert.equal(group.swapBytes, 0)
    assert.equal(before - (await freeMib()), limitMib)
    await destroySandbox(warren, id)
  })

  test('all VMMs together leave memory to PostgreSQL and Warren, and the kernel kills them first', async () => {
    const { id } = await createSandbox(warren)
    const total = Number(/^MemTotal:\s+(\d+) kB$/m.exec(readFileSync('/proc/meminfo', 'utf8'))![1]) * 1024

    assert.ok(memoryGroupOf(id).parentLimitBytes <= total - 2_000 * MIB)
    const scoreOf = (pid: number) => Number(readFileSync(`/proc/${pid}/oom_score_adj`, 'utf8'))
    assert.equal(scoreOf(findQemuPid(warren, id)!), 500)
    for (const pid of ownPids()) assert.ok(scoreOf(pid) <= 0, `process ${pid}`)
    await destroySandbox(warren, id)
  })

  for (const { id: shape, mem_mib } of TESTED_SHAPES) {
    test(`${shape}: a guest uses all its memory and its disk, pauses, resumes and forks within the limit`, async () => {
      const { id } = await createSandbox(warren, { shape })
      const fill = `mount -o remount,size=100% /dev/shm || mount -t tmpfs -o size=100% tmpfs /dev/shm
        perl -e 'my $m = join "", map { chr rand 256 } 1 .. 4096; print $m x 256 for 1 .. ${Math.floor(mem_mib * 0.6)}' > /dev/shm/full`
      await runShell(warren, id, fill)
      const sum = await runShell(warren, id, SUM)
      await runShell(warren, id, `dd if=/dev/zero of=/root/zeros bs=1M count=${mem_mib * 2} conv=fsync 2>/dev/null`)

      await pauseSandbox(warren, id)
      const child = await forkSandbox(warren, id)
      await resumeSandbox(warren, id)
      for (const one of [id, child.id]) {
        assert.equal(await runShell(warren, one, SUM), sum)
        assert.equal(memoryGroupOf(one).killed, 0)
      }
      for (const one of [child.id, id]) await destroySandbox(warren, one)
    })
  }

  test('a VMM that exceeds it is killed: its sandbox is in error with the reason, neighbours and PostgreSQL are not', async () => {
    const [victim, neighbour] = [await createSandbox(warren), await createSandbox(warren)]
    await runShell(warren, neighbour.id, 'echo here > /dev/shm/proof')
    await pauseSandbox(warren, victim.id)
    await resumeSandbox(warren, victim.id)
    const others = [...ownPids(), findQemuPid(warren, neighbour.id)!]
    const { limitFile } = memoryGroupOf(victim.id)

    // As if QEMU had a leak: what it may use is less than what its guest is about to use.
    writeFileSync(limitFile, `${160 * MIB}`)
    void runShell(warren, victim.id, 'perl -e \'print "x" x (1 << 20) for 1 .. 200\' > /dev/shm/full').catch(() => {}) // The guest ends.
    const dead = await until(async () => {
      const sandbox = await getSandbox(warren, victim.id)
      return sandbox.status === 'error' && sandbox
    }, 'the sandbox is in error')

    assert.match(dead.status_reason ?? '', /exceeded its memory limit of 160 MiB and was killed \(out of memory\)/)
    for (const pid of others) assert.ok(existsSync(`/proc/${pid}`), `process ${pid} is alive`)
    assert.equal(await runShell(warren, neighbour.id, 'cat /dev/shm/proof'), 'here')
    await resumeSandbox(warren, victim.id)
    assert.equal(memoryGroupOf(victim.id).killed, 0)
    assert.equal((await waitForStatus(warren, victim.id, 'running')).status, 'running')
    for (const { id } of [victim, neighbour]) await destroySandbox(warren, id)
  })
})

/** Both versions of cgroups, from the process of the sandbox. */
function memoryGroupOf(id: string) {
  const groups = readFileSync(`/proc/${findQemuPid(warren, id)}/cgroup`, 'utf8')
  const v1 = /^\d+:(?:[^:]*,)?memory(?:,[^:]*)?:(.*)$/m.exec(groups)?.[1]
  const mounts = readFileSync('/proc/mounts', 'utf8')
  const [root, group] =
    v1 === undefined
      ? [/^\S+ (\S+) cgroup2 /m.exec(mounts)![1]!, /^0::(.*)$/m.exec(groups)![1]!]
      : [/^\S+ (\S+) cgroup \S*\bmemory\b/m.exec(mounts)![1]!, v1]
  const folder = path.join(root, group)
  const read = (file: string) => readFileSync(path.join(folder, file), 'utf8').trim()
  const kills = (text: string) => Number(/^oom_kill (\d+)$/m.exec(text)![1])
  if (v1 === undefined) {
    return {
      limitFile: path.join(folder, 'memory.max'),
      limitBytes: Number(read('memory.max')),
      parentLimitBytes: Number(read('../memory.max')),
      swapBytes: Number(read('memory.swap.max')),
      killed: kills(read('memory.events')),
    }
  }
  const limitBytes = Number(read('memory.limit_in_bytes'))
  return {
    limitFile: path.join(folder, 'memory.limit_in_bytes'),
    limitBytes,
    parentLimitBytes: Number(read('../memory.limit_in_bytes')),
    swapBytes: Number(read('memory.memsw.limit_in_bytes')) - limitBytes,
    killed: kills(read('memory.oom_control')),
  }
}

/** Of Warren and of PostgreSQL. */
function ownPids(): number[] {
  const { pid, children } = JSON.parse(readFileSync(path.join(warren.instance.dataDir, 'instance.json'), 'utf8'))
  const started = [pid, ...children.map((child: { pid: number }) => child.pid)]
  return [...started, ...started.map(findProgram), getPostmasterPid(warren.instance.dataDir)]
}

async function freeMib(): Promise<number> {
  const response = await fetch(`${warren.instance.baseUrl}/v1/hosts`, { headers: { 'x-api-key': warren.instance.key } })
  const body = (await response.json()) as { data: { data: { free_mib: number }[] } }
  return body.data.data[0]!.free_mib
}

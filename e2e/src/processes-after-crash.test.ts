/** Processes and their readers when the host agent, control plane or guest agent dies: no exit is ever made up. */
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { getControlPlanePid, getHostAgentPid, kill } from './support/instance.ts'
import { checkCount, type Followed, processClient, readOutput } from './support/process-client.ts'
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
import { cannotRunVms, startUnlessSkipped, startVmInstance, VM_STORIES_LIMIT_MS } from './support/vm-instance.ts'

const warren = await startUnlessSkipped(cannotRunVms, () => startVmInstance())

const COUNT = ['-c', 'n=0; while :; do n=$((n+1)); echo $n; sleep 0.05; done']
const RECOVERY_LIMIT_MS = 60_000

describe('managed processes and crashes', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  const countLines = (text: string) => text.split('\n').length
  const waitUntilReachable = (sandboxId: string) =>
    until(
      async () =>
        (
          await processClient(warren, sandboxId)
            .request('GET', '')
            .catch(() => undefined)
        )?.status === 200,
      'the guest is reachable again',
      RECOVERY_LIMIT_MS,
    )

  /** Reads ten more lines of the count, from where a reader stopped. */
  async function readMore(sandboxId: string, id: string, before: Followed): Promise<Followed> {
    const more = await processClient(warren, sandboxId).follow(id, before.seq, (text) => countLines(text) > 10)
    return { ...more, bytes: Buffer.concat([before.bytes, more.bytes]) }
  }

  test('a process in a terminal continues through pause, killed host agents, resume and fork', async () => {
    const { id } = await createSandbox(warren)
    const processes = processClient(warren, id)
    const { process_id } = await processes.start({ cmd: 'sh', args: COUNT, pty: {} })
    let read = await processes.follow(process_id, 0, (text) => countLines(text) > 5)

    await pauseSandbox(warren, id)
    kill(await getHostAgentPid(warren.instance.dataDir))
    await until(async () => (await requestResume(id)) === 202, 'it can be resumed', RECOVERY_LIMIT_MS)
    await waitForStatus(warren, id, 'running')
    read = await readMore(id, process_id, read)
    kill(await getHostAgentPid(warren.instance.dataDir))
    await waitUntilReachable(id)
    read = await readMore(id, process_id, read)
    await pauseSandbox(warren, id)
    const child = await forkSandbox(warren, id)
    const ofChild = await readMore(child.id, process_id, read)
    await resumeSandbox(warren, id)
    const ofParent = await readMore(id, process_id, read)

    for (const [sandboxId, { bytes, seq }] of [[child.id, ofChild] as const, [id, ofParent] as const]) {
      const counted = checkCount(bytes.toString(), 1)
      const again = await processClient(warren, sandboxId).follow(
        process_id,
        0,
        (text) => countLines(text) > counted.length,
      )
      assert.ok(again.seq >= seq)
      checkCount(again.bytes.toString(), 1)
      const { exit_code, signal } = await processClient(warren, sandboxId).delete(process_id)
      assert.deepEqual([exit_code, signal], [null, 'SIGTERM'])
    }
    await destroySandbox(warren, child.id)
    await destroySandbox(warren, id)
  })

  const requestResume = async (id: string) => {
    const url = `${warren.instance.baseUrl}/v1/sandboxes/${id}/resume`
    return (await fetch(url, { method: 'POST', headers: { 'x-api-key': warren.instance.key } }).catch(() => undefined))
      ?.status
  }

  const VICTIMS = {
    'control plane': () => getControlPlanePid(warren.instance.dataDir),
    'host agent': () => getHostAgentPid(warren.instance.dataDir),
  }

  for (const [victim, pidOf] of Object.entries(VICTIMS)) {
    test(`killing the ${victim} aborts a connect stream, which can be continued without a gap`, async () => {
      const { id } = await createSandbox(warren)
      const processes = processClient(warren, id)
      const { process_id } = await processes.start({ cmd: 'sh', args: COUNT })
      const pid = await pidOf()
      let killed = false

      const read = await readOutput(await processes.connect(process_id, 0), 0, (text) => {
        if (!killed && countLines(text) > 5) kill(pid)
        killed ||= countLines(text) > 5
        return false
      })
      await waitUntilReachable(id)
      const all = await readMore(id, process_id, read)

      assert.ok(killed)
      assert.notEqual(read.end?.type, 'exit')
      checkCount(all.bytes.toString(), 1)
      assert.equal((await processes.get(process_id)).state, 'running')
      await destroySandbox(warren, id)
    })

    test(`a process that exits while the ${victim} is dead keeps its real exit code, and no waiter gets another`, async () => {
      const { id } = await createSandbox(warren)
      const processes = processClient(warren, id)
      const { process_id } = await processes.start({ cmd: 'sh', args: ['-c', 'echo waits; sleep 1; exit 9'] })
      await processes.follow(process_id, 0, (text) => text === 'waits\n')
      const waiting = processes.request('GET', `/${process_id}/wait?timeout_ms=30000`).catch(() => undefined)

      kill(await pidOf())
      const waited = await waiting
      await waitUntilReachable(id)

      assert.ok(waited === undefined || waited.status >= 500 || waited.data.exit_code === 9, JSON.stringify(waited))
      const { bytes, end } = await processes.follow(process_id, 0)
      assert.deepEqual([bytes.toString(), end], ['waits\n', { type: 'exit', exit_code: 9 }])
      assert.equal((await processes.get(process_id)).exit_code, 9)
      await destroySandbox(warren, id)
    })
  }

  test('the guest agent cannot be killed from inside the guest', async () => {
    const { id } = await createSandbox(warren)
    const processes = processClient(warren, id)
    const { process_id } = await processes.start({ cmd: 'sh', args: COUNT })
    const before = await processes.follow(process_id, 0, (text) => countLines(text) > 3)

    // Without SIGTERM, SIGUSR1 and SIGUSR2, which `poweroff` uses: these shut the VM down properly.
    await runShell(warren, id, 'for s in KILL INT QUIT HUP SEGV SEGV BUS ILL FPE ABRT; do kill -$s 1; done')

    checkCount((await readMore(id, process_id, before)).bytes.toString(), 1)
    await destroySandbox(warren, id)
  })

  test('when the guest agent dies the VM ends: readers get an error, and no process gets an exit', async () => {
    const { id } = await createSandbox(warren)
    const processes = processClient(warren, id)
    const { process_id } = await processes.start({ cmd: 'sh', args: COUNT })
    const stream = await processes.connect(process_id, 0)
    const reading = readOutput(stream, 0)

    // Only root in the guest can kill it, and only by writing traps into its code in memory.
    await processes.request('POST', '', { cmd: 'perl', args: ['-e', BREAK_PID_1] })
    const read = await reading
    await until(
      async () => (await getSandbox(warren, id)).status === 'error',
      'the sandbox is in error',
      RECOVERY_LIMIT_MS,
    )

    checkCount(read.bytes.toString(), 1)
    assert.equal(read.end?.type, 'error')
    assert.match((await getSandbox(warren, id)).status_reason ?? '', /the VM ended/)
    const after = await processes.request('GET', `/${process_id}`)
    assert.equal(after.status, 409)
    await destroySandbox(warren, id)
  })
})

const BREAK_PID_1 = `open(my $maps, '<', '/proc/1/maps'); open(my $mem, '+<', '/proc/1/mem') or die;
while (<$maps>) {
  /^(\\w+)-(\\w+) r-xp .*\\/|^(\\w+)-(\\w+) r-xp/ or next; next if /\\[/;
  my ($from, $to) = map { hex } ($1 // $3, $2 // $4);
  sysseek($mem, $from, 0); syswrite($mem, "\\xcc" x ($to - $from));
}`

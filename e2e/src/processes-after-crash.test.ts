/** What becomes of processes and their readers when the parts between them die: an end is told, never invented. */
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
import { cannotRunVms, startVmInstance, VM_STORIES_LIMIT_MS } from './support/vm-instance.ts'

const warren = cannotRunVms ? (undefined as never) : await startVmInstance()

const COUNT = ['-c', 'n=0; while :; do n=$((n+1)); echo $n; sleep 0.05; done']
const BACK_LIMIT_MS = 60_000

describe('processes survive', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  const lines = (text: string) => text.split('\n').length
  const untilAnswers = (sandboxId: string) =>
    until(
      async () =>
        (
          await processClient(warren, sandboxId)
            .call('GET', '')
            .catch(() => undefined)
        )?.status === 200,
      'the guest is reached again',
      BACK_LIMIT_MS,
    )

  /** Ten more of what it counts, from where a reader left off. */
  async function readOn(sandboxId: string, id: string, before: Followed): Promise<Followed> {
    const more = await processClient(warren, sandboxId).follow(id, before.seq, (text) => lines(text) > 10)
    return { ...more, bytes: Buffer.concat([before.bytes, more.bytes]) }
  }

  test('a count in a terminal goes on through pause, killed host agents, resume and fork', async () => {
    const { id } = await createSandbox(warren)
    const processes = processClient(warren, id)
    const { process_id } = await processes.start({ cmd: 'sh', args: COUNT, pty: {} })
    let read = await processes.follow(process_id, 0, (text) => lines(text) > 5)

    await pauseSandbox(warren, id)
    kill(await getHostAgentPid(warren.instance.dataDir))
    await until(async () => (await call202(id)) === 202, 'it can be resumed', BACK_LIMIT_MS)
    await waitForStatus(warren, id, 'running')
    read = await readOn(id, process_id, read)
    kill(await getHostAgentPid(warren.instance.dataDir))
    await untilAnswers(id)
    read = await readOn(id, process_id, read)
    await pauseSandbox(warren, id)
    const child = await forkSandbox(warren, id)
    const ofChild = await readOn(child.id, process_id, read)
    await resumeSandbox(warren, id)
    const ofParent = await readOn(id, process_id, read)

    for (const [sandboxId, { bytes, seq }] of [[child.id, ofChild] as const, [id, ofParent] as const]) {
      const counted = checkCount(bytes.toString(), 1)
      const again = await processClient(warren, sandboxId).follow(process_id, 0, (text) => lines(text) > counted.length)
      assert.ok(again.seq >= seq)
      checkCount(again.bytes.toString(), 1)
      const { exit_code, signal } = await processClient(warren, sandboxId).delete(process_id)
      assert.deepEqual([exit_code, signal], [null, 'SIGTERM'])
    }
    await destroySandbox(warren, child.id)
    await destroySandbox(warren, id)
  })

  const call202 = async (id: string) => {
    const url = `${warren.instance.baseUrl}/v1/sandboxes/${id}/resume`
    return (await fetch(url, { method: 'POST', headers: { 'x-api-key': warren.instance.key } }).catch(() => undefined))
      ?.status
  }

  const VICTIMS = {
    'control plane': () => getControlPlanePid(warren.instance.dataDir),
    'host agent': () => getHostAgentPid(warren.instance.dataDir),
  }

  for (const [victim, pidOf] of Object.entries(VICTIMS)) {
    test(`a ${victim} that is killed in the middle of a connect cuts it; it goes on where it was`, async () => {
      const { id } = await createSandbox(warren)
      const processes = processClient(warren, id)
      const { process_id } = await processes.start({ cmd: 'sh', args: COUNT })
      const pid = await pidOf()
      let killed = false

      const read = await readOutput(await processes.connect(process_id, 0), 0, (text) => {
        if (!killed && lines(text) > 5) kill(pid)
        killed ||= lines(text) > 5
        return false
      })
      await untilAnswers(id)
      const all = await readOn(id, process_id, read)

      assert.ok(killed)
      assert.notEqual(read.end?.type, 'exit')
      checkCount(all.bytes.toString(), 1)
      assert.equal((await processes.get(process_id)).state, 'running')
      await destroySandbox(warren, id)
    })

    test(`a process that ends while the ${victim} is dead has its real end, and who waited is told of no other`, async () => {
      const { id } = await createSandbox(warren)
      const processes = processClient(warren, id)
      const { process_id } = await processes.start({ cmd: 'sh', args: ['-c', 'echo waits; sleep 1; exit 9'] })
      await processes.follow(process_id, 0, (text) => text === 'waits\n')
      const waiting = processes.call('GET', `/${process_id}/wait?timeout_ms=30000`).catch(() => undefined)

      kill(await pidOf())
      const waited = await waiting
      await untilAnswers(id)

      assert.ok(waited === undefined || waited.status >= 500 || waited.data.exit_code === 9, JSON.stringify(waited))
      const { bytes, end } = await processes.follow(process_id, 0)
      assert.deepEqual([bytes.toString(), end], ['waits\n', { type: 'exit', exit_code: 9 }])
      assert.equal((await processes.get(process_id)).exit_code, 9)
      await destroySandbox(warren, id)
    })
  }

  test('the agent in the guest cannot be killed from inside', async () => {
    const { id } = await createSandbox(warren)
    const processes = processClient(warren, id)
    const { process_id } = await processes.start({ cmd: 'sh', args: COUNT })
    const before = await processes.follow(process_id, 0, (text) => lines(text) > 3)

    // Not SIGTERM, SIGUSR1 and SIGUSR2, by which `poweroff` asks: these end the machine in good order.
    await runShell(warren, id, 'for s in KILL INT QUIT HUP SEGV SEGV BUS ILL FPE ABRT; do kill -$s 1; done')

    checkCount((await readOn(id, process_id, before)).bytes.toString(), 1)
    await destroySandbox(warren, id)
  })

  test('an agent that dies ends the machine: its readers get an error, and no process an exit', async () => {
    const { id } = await createSandbox(warren)
    const processes = processClient(warren, id)
    const { process_id } = await processes.start({ cmd: 'sh', args: COUNT })
    const stream = await processes.connect(process_id, 0)
    const reading = readOutput(stream, 0)

    // Only root of the guest can, and only by writing into its memory: traps instead of code.
    await processes.call('POST', '', { cmd: 'perl', args: ['-e', BREAK_PID_1] })
    const read = await reading
    await until(async () => (await getSandbox(warren, id)).status === 'error', 'the loss is told', BACK_LIMIT_MS)

    checkCount(read.bytes.toString(), 1)
    assert.equal(read.end?.type, 'error')
    assert.match((await getSandbox(warren, id)).status_reason ?? '', /the VM ended/)
    const after = await processes.call('GET', `/${process_id}`)
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

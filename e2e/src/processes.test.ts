/** Managed processes in a real VM, through everything between a client and a program. */
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { NdjsonDecoder, type ProcessFrame, type ProcessView } from '@warren/protocol'
import { processClient } from './support/process-client.ts'
import { createSandbox, runShell } from './support/sandboxes.ts'
import { cannotRunVms, startUnlessSkipped, startVmInstance, VM_STORIES_LIMIT_MS } from './support/vm-instance.ts'

const warren = await startUnlessSkipped(cannotRunVms, () => startVmInstance())
const sandbox = await startUnlessSkipped(cannotRunVms, () => createSandbox(warren, { envs: { GREETING: 'hello' } }))

const ALL_BYTES = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte))
const LIVE_MAX = 64

describe('managed processes in a real VM', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  const processes = processClient(warren, sandbox.id)

  test('a pipe carries every byte value in and out', async () => {
    const { process_id } = await processes.start({ cmd: 'cat' })

    await processes.write(process_id, ALL_BYTES)
    await processes.requestOk('POST', `/${process_id}/stdin/close`)

    const { bytes, end } = await processes.follow(process_id, 0)
    assert.deepEqual(bytes, ALL_BYTES)
    assert.deepEqual(end, { type: 'exit', exit_code: 0 })
  })

  test('a terminal in raw mode carries every byte value in and out', async () => {
    const script = 'stty raw -echo; printf ready; exec cat'
    const { process_id } = await processes.start({ cmd: 'sh', args: ['-c', script], pty: {} })
    const ready = await processes.follow(process_id, 0, (text) => text === 'ready')

    await processes.write(process_id, ALL_BYTES)

    const { bytes } = await processes.follow(process_id, ready.seq, (text) => text.length >= ALL_BYTES.length)
    assert.deepEqual(bytes, ALL_BYTES)
    await processes.delete(process_id)
  })

  test('a terminal has its size and the environment of the sandbox', async () => {
    const { process_id } = await processes.start({ cmd: 'sh', pty: {} })

    await processes.write(process_id, 'stty size\n')
    await processes.follow(process_id, 0, (text) => text.includes('24 80'))
    await processes.requestOk('POST', `/${process_id}/resize`, { rows: 50, cols: 132 })
    await processes.write(process_id, 'stty size; echo $GREETING; exit 3\n')

    const { bytes, end } = await processes.follow(process_id, 0)
    assert.match(bytes.toString(), /50 132\r\nhello/)
    assert.deepEqual(end, { type: 'exit', exit_code: 3 })
  })

  test('the foreground of a terminal is its program from the first response on, and an idle shell itself', async () => {
    const shell = await processes.start({ pty: {} })
    const { process_id } = shell

    await processes.follow(process_id, 0, (text) => text.length > 0)
    const idle = await processes.get(process_id)

    const name = (view: ProcessView) => view.foreground?.cmd.split('/').at(-1)
    assert.deepEqual([shell, idle].map(name), ['bash', 'bash'])
    assert.deepEqual(
      [shell, idle].map(({ foreground }) => foreground?.pid),
      [shell.pid, shell.pid],
    )
    await processes.delete(process_id)
  })

  test('a reader that is disconnected repeatedly continues by sequence number and gets everything once', async () => {
    const script = 'for i in $(seq 2000); do echo "line $i"; done; echo end >&2; exit 5'
    const { process_id } = await processes.start({ cmd: 'sh', args: ['-c', script] })
    let text = ''
    let seq = 0
    let end: object | undefined

    for (let round = 1; end === undefined; round++) {
      // Stops after a number of bytes, wherever that is; the last rounds reach the end.
      const { events, ended } = await readBytes(await processes.connect(process_id, seq), round * 997)
      for (const event of events) {
        assert.equal(event.seq, seq + 1)
        seq = event.seq
        text += Buffer.from(event.data_base64, 'base64')
      }
      end = ended
    }

    const lines = Array.from({ length: 2000 }, (_, index) => `line ${index + 1}\n`)
    assert.equal(text.replace('end\n', ''), lines.join(''))
    assert.deepEqual(end, { type: 'exit', exit_code: 5 })
  })

  /** Returns the complete lines among the first bytes of a stream and then disconnects. */
  async function readBytes(response: Response, max: number) {
    const decoder = new NdjsonDecoder()
    const frames: ProcessFrame[] = []
    let remaining = max
    for await (const chunk of response.body!) {
      for (const frame of decoder.push(chunk.subarray(0, remaining))) frames.push(frame as ProcessFrame)
      remaining -= chunk.length
      if (remaining <= 0) break
    }
    const events = frames.filter((frame) => frame.type === 'data')
    return { events, ended: frames.find(({ type }) => type === 'exit' || type === 'error') }
  }

  test('deleting a process also kills a daemon that it forked into a new session', async () => {
    const script = 'setsid sh -c "sleep 1000 & echo \\$!" < /dev/null; exit 0'
    const { process_id } = await processes.start({ cmd: 'sh', args: ['-c', script] })
    await processes.requestOk('GET', `/${process_id}/wait`)
    const daemon = (await processes.follow(process_id, 0)).bytes.toString().trim()
    const before = await processes.get(process_id)

    const ended = await processes.delete(process_id, 100)

    assert.deepEqual([before.leader_exited, before.tree_exited], [true, false])
    assert.deepEqual([ended.tree_exited, ended.exit_code], [true, 0])
    assert.equal(await runShell(warren, sandbox.id, `kill -0 ${daemon} 2>/dev/null && echo alive || echo gone`), 'gone')
  })

  test('deleting a process also kills daemons that ignore every signal they can', async () => {
    const script = `use POSIX; $SIG{$_} = 'IGNORE' for qw(TERM HUP INT QUIT PIPE); $| = 1;
for (1..3) { next if fork; setsid(); exit if fork; print "$$\\n"; sleep 1000; exit }
sleep 1000`
    const { process_id, pid } = await processes.start({ cmd: 'perl', args: ['-e', script] })
    const { bytes } = await processes.follow(process_id, 0, (text) => text.split('\n').length > 3)
    const daemons = bytes.toString().trim().split('\n')

    await processes.requestOk('POST', `/${process_id}/signal`, { signal: 'SIGTERM' })
    const unaffected = await processes.request('GET', `/${process_id}/wait?timeout_ms=200`)
    const ended = await processes.delete(process_id, 200)

    assert.deepEqual([unaffected.status, unaffected.data.code], [408, 'wait_timeout'])
    assert.deepEqual([ended.state, ended.tree_exited, ended.exit_code, ended.signal], ['exited', true, null, 'SIGKILL'])
    for (const one of [pid, ...daemons]) {
      assert.equal(await runShell(warren, sandbox.id, `kill -0 ${one} 2>/dev/null && echo alive || echo gone`), 'gone')
    }
  })

  test('a process that fills the disk fails with an exit code, and others still start on the full disk', async () => {
    await runShell(warren, sandbox.id, 'fallocate -l $(($(stat -f -c "%a * %S" /) - 8388608)) /root/almost')
    const fill = await processes.start({ cmd: 'dd', args: ['if=/dev/zero', 'of=/root/rest', 'bs=64k'] })

    const filled = await processes.follow(fill.process_id, 0)
    const other = await processes.start({ cmd: 'sh', args: ['-c', 'echo alive; echo more > /root/more'] })
    const refused = await processes.follow(other.process_id, 0)

    assert.deepEqual(filled.end, { type: 'exit', exit_code: 1 })
    assert.match(filled.bytes.toString(), /No space left on device/)
    assert.match(refused.bytes.toString(), /^alive\n.*error/s)
    assert.deepEqual(refused.end, { type: 'exit', exit_code: 1 })
    await runShell(warren, sandbox.id, 'rm /root/almost /root/rest /root/more; echo room > /root/room')
  })

  test(`${LIVE_MAX} processes run at once with separate output; one more is rejected until one has exited`, async () => {
    const started = await Promise.all(Array.from({ length: LIVE_MAX }, () => processes.start({ cmd: 'cat' })))
    const tooMany = await processes.request('POST', '', { cmd: 'cat' })

    const echoes = await Promise.all(
      started.map(async ({ process_id }, number) => {
        await processes.write(process_id, `I am ${number}\n`)
        return processes.follow(process_id, 0, (text) => text.endsWith('\n'))
      }),
    )

    assert.deepEqual([tooMany.status, tooMany.data.code], [429, 'process_limit_reached'])
    for (const [number, { bytes }] of echoes.entries()) assert.equal(bytes.toString(), `I am ${number}\n`)
    const { processes: listed } = await processes.requestOk<{ processes: ProcessView[] }>('GET', '')
    assert.equal(listed.filter(({ state }) => state === 'running').length, LIVE_MAX)
    await processes.delete(started[0]!.process_id)
    started[0] = await processes.start({ cmd: 'cat' })
    await Promise.all(started.map(({ process_id }) => processes.delete(process_id)))
  })
})

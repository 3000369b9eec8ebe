/** Full-screen terminal programs: what they draw is rendered, keys are typed, the window grows, the result is read back. */
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { type Followed, processClient } from './support/process-client.ts'
import { createSandbox, runShell } from './support/sandboxes.ts'
import { renderScreen } from './support/terminal-screen.ts'
import {
  cannotRunVms,
  skipWithoutImage,
  startUnlessSkipped,
  startVmInstance,
  VM_STORIES_LIMIT_MS,
} from './support/vm-instance.ts'

const IMAGE = 'devbox:1'
const skip = cannotRunVms || (await skipWithoutImage(IMAGE))
const warren = await startUnlessSkipped(skip, () => startVmInstance())
const sandbox = await startUnlessSkipped(skip, () => createSandbox(warren, { rootfs: IMAGE, shape: 's-1vcpu-1gb' }))

/** System calls that wait for input, as in /proc/PID/syscall, and their argument when no time limit ends the wait. */
const WAITS_WITHOUT_LIMIT = [
  /^0 /, // read
  /^7 (\S+ ){2}0xffffffff/, // poll
  /^271 (\S+ ){2}0x0 /, // ppoll
  /^(23|270) (\S+ ){4}0x0 /, // select, pselect6
]
const isWaitingForKey = (syscall: string): boolean => WAITS_WITHOUT_LIMIT.some((wait) => wait.test(syscall))

const ROWS = 12
const COLS = 60

describe('full-screen programs', { skip, timeout: VM_STORIES_LIMIT_MS }, () => {
  const processes = processClient(warren, sandbox.id)

  /** Starts a program in a terminal. */
  async function openTerminal(cmd: string, ...args: string[]) {
    const { process_id, pid } = await processes.start({ cmd, args, pty: { rows: ROWS, cols: COLS } })
    let read: Followed = { seq: 0, bytes: Buffer.alloc(0), end: undefined }
    let size = { rows: ROWS, cols: COLS }
    const render = (more = '') => renderScreen(read.bytes.toString('latin1') + more, size.rows, size.cols)
    const follow = async (isDone: (screen: string[]) => boolean) => {
      const more = await processes.follow(process_id, read.seq, (text) => isDone(render(text)))
      read = { ...more, bytes: Buffer.concat([read.bytes, more.bytes]) }
    }
    return {
      type: (keys: string) => processes.write(process_id, keys),
      /**
       * The program draws everything again. What it drew before was for another size, so it is dropped.
       *
       * vim looks whether the window has changed and then waits for a key. A change that arrives in between, it notices with
       * the next key: on any machine, but rarely on a fast one. So the window changes while the program waits.
       */
      async resize(rows: number, cols: number) {
        await until(async () => isWaitingForKey(await runShell(warren, sandbox.id, `cat /proc/${pid}/syscall`)))
        read = { ...read, bytes: Buffer.alloc(0) }
        size = { rows, cols }
        await processes.requestOk('POST', `/${process_id}/resize`, size)
      },
      /** Waits until the screen satisfies the condition and returns it. */
      async waitForScreen(isDone: (screen: string[]) => boolean): Promise<string[]> {
        if (!isDone(render())) await follow(isDone)
        const how = read.end === undefined ? 'is waiting' : 'has ended'
        assert.ok(isDone(render()), `the program ${how} with this screen:\n${render().join('\n')}`)
        return render()
      },
      async waitForEnd() {
        await follow(() => false)
        return read.end
      },
    }
  }

  for (const editor of [
    ['vim.tiny', '-u', 'NONE'],
    ['busybox', 'vi'],
  ]) {
    test(`${editor[0]} shows a file, accepts keys, fills a larger window and saves`, async () => {
      await runShell(warren, sandbox.id, 'printf "first line\\nsecond line\\n" > /root/note')
      const terminal = await openTerminal(editor[0]!, ...editor.slice(1), '/root/note')

      const drawn = await terminal.waitForScreen((screen) => screen[1] === 'second line' && screen[ROWS - 2] === '~')
      await terminal.type('Othe zeroth line\x1b')
      const typed = await terminal.waitForScreen(
        (screen) => screen[0] === 'the zeroth line' && screen[2] === 'second line',
      )
      await terminal.resize(ROWS + 8, COLS + 40)
      await terminal.waitForScreen((screen) => screen[0] === 'the zeroth line' && screen[ROWS + 6] === '~')
      await terminal.type(':wq\r')
      const end = await terminal.waitForEnd()

      assert.deepEqual(drawn.slice(0, 3), ['first line', 'second line', '~'])
      assert.deepEqual(typed.slice(0, 4), ['the zeroth line', 'first line', 'second line', '~'])
      assert.deepEqual(end, { type: 'exit', exit_code: 0 })
      assert.equal(await runShell(warren, sandbox.id, 'cat /root/note'), 'the zeroth line\nfirst line\nsecond line')
    })
  }

  test('less shows the first page, the next, a search result and the end', async () => {
    await runShell(warren, sandbox.id, 'seq -f "line %.0f" 500 > /root/long')
    const page = (first: number) => Array.from({ length: ROWS - 1 }, (_, index) => `line ${first + index}`)
    const shows = (first: number) => (screen: string[]) => screen.slice(0, -1).join() === page(first).join()
    const terminal = await openTerminal('less', '/root/long')

    await terminal.waitForScreen(shows(1))
    await terminal.type(' ')
    await terminal.waitForScreen(shows(ROWS))
    await terminal.type('/line 250\r')
    await terminal.waitForScreen(shows(250))
    await terminal.type('G')
    const last = await terminal.waitForScreen(shows(500 - ROWS + 2))
    await terminal.type('q')

    assert.equal(last[ROWS - 1], '(END)')
    assert.deepEqual(await terminal.waitForEnd(), { type: 'exit', exit_code: 0 })
  })
})

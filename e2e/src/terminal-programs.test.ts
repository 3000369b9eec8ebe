/** Programs that own a whole terminal, as people use them in one: drawn, typed into and read back. */
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { type Followed, processClient } from './support/process-client.ts'
import { createSandbox, runShell } from './support/sandboxes.ts'
import { renderScreen } from './support/terminal-screen.ts'
import { cannotRunVms, skipWithoutImage, startVmInstance, VM_STORIES_LIMIT_MS } from './support/vm-instance.ts'

const IMAGE = 'devbox:1'
const skip = cannotRunVms || skipWithoutImage(IMAGE)
const warren = skip ? (undefined as never) : await startVmInstance()
const sandbox = skip ? (undefined as never) : await createSandbox(warren, { rootfs: IMAGE, shape: 's-1vcpu-1gb' })

const ROWS = 12
const COLS = 60

describe('programs that draw', { skip, timeout: VM_STORIES_LIMIT_MS }, () => {
  const processes = processClient(warren, sandbox?.id)

  /** Somebody before a terminal in which a program runs. */
  async function sitDown(cmd: string, ...args: string[]) {
    const { process_id } = await processes.start({ cmd, args, pty: { rows: ROWS, cols: COLS } })
    let read: Followed = { seq: 0, bytes: Buffer.alloc(0), end: undefined }
    const draw = (more = '') => renderScreen(read.bytes.toString('latin1') + more, ROWS, COLS)
    const follow = async (enough: (screen: string[]) => boolean) => {
      const more = await processes.follow(process_id, read.seq, (text) => enough(draw(text)))
      read = { ...more, bytes: Buffer.concat([read.bytes, more.bytes]) }
    }
    return {
      type: (keys: string) => processes.write(process_id, keys),
      /** What is on the screen as soon as it is as it should be. */
      async sees(enough: (screen: string[]) => boolean): Promise<string[]> {
        if (!enough(draw())) await follow(enough)
        assert.ok(enough(draw()), `it ended with this on the screen:\n${draw().join('\n')}`)
        return draw()
      },
      async untilItEnds() {
        await follow(() => false)
        return read.end
      },
    }
  }

  for (const editor of [
    ['vim.tiny', '-u', 'NONE'],
    ['busybox', 'vi'],
  ]) {
    test(`${editor[0]} draws a file, is typed into, and saves`, async () => {
      await runShell(warren, sandbox.id, 'printf "first line\\nsecond line\\n" > /root/note')
      const me = await sitDown(editor[0]!, ...editor.slice(1), '/root/note')

      const drawn = await me.sees((screen) => screen[1] === 'second line' && screen[ROWS - 2] === '~')
      await me.type('Othe zeroth line\x1b')
      const typed = await me.sees((screen) => screen[0] === 'the zeroth line' && screen[2] === 'second line')
      await me.type(':wq\r')
      const end = await me.untilItEnds()

      assert.deepEqual(drawn.slice(0, 3), ['first line', 'second line', '~'])
      assert.deepEqual(typed.slice(0, 4), ['the zeroth line', 'first line', 'second line', '~'])
      assert.deepEqual(end, { type: 'exit', exit_code: 0 })
      assert.equal(await runShell(warren, sandbox.id, 'cat /root/note'), 'the zeroth line\nfirst line\nsecond line')
    })
  }

  test('less shows a page, the next, what is searched for, and the end', async () => {
    await runShell(warren, sandbox.id, 'seq -f "line %.0f" 500 > /root/long')
    const page = (first: number) => Array.from({ length: ROWS - 1 }, (_, index) => `line ${first + index}`)
    const shows = (first: number) => (screen: string[]) => screen.slice(0, -1).join() === page(first).join()
    const me = await sitDown('less', '/root/long')

    await me.sees(shows(1))
    await me.type(' ')
    await me.sees(shows(ROWS))
    await me.type('/line 250\r')
    await me.sees(shows(250))
    await me.type('G')
    const last = await me.sees(shows(500 - ROWS + 2))
    await me.type('q')

    assert.equal(last[ROWS - 1], '(END)')
    assert.deepEqual(await me.untilItEnds(), { type: 'exit', exit_code: 0 })
  })
})

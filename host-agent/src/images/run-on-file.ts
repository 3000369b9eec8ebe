/**
 * Runs a program on a file whose content is hostile. The program runs under a user id that owns nothing but this file, cannot
 * gain privileges, has no network, and gets the file as a descriptor, because it can enter none of our folders.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { chown, open } from 'node:fs/promises'
import { TOOL_ENV as env } from './tools.ts'

const OUTPUT_MAX_BYTES = 1024 * 1024
/** Checking and shrinking 5 GB takes seconds, on a slow disk minutes. */
const TIMEOUT_MS = 900_000
/** The descriptor of the file in the program, and its name there. */
export const FILE = '/proc/self/fd/3'

export type FileResult = { exitCode: number; output: string }

/** `FILE` in `args` is the file. Afterwards it belongs to root again. */
export async function runOnFile(
  file: string,
  uid: number,
  [command, ...args]: readonly [string, ...string[]],
  signal?: AbortSignal,
): Promise<FileResult> {
  signal?.throwIfAborted()
  const handle = await open(file, 'r+')
  try {
    await handle.chown(uid, uid)
    const user = [`--reuid=${uid}`, `--regid=${uid}`, '--clear-groups', '--no-new-privs', '--bounding-set=-all']
    const child = spawn(
      'unshare',
      ['--net', '--ipc', '--', 'setpriv', ...user, '--inh-caps=-all', '--pdeathsig=KILL', '--', command, ...args],
      { cwd: '/', env, stdio: ['ignore', 'pipe', 'pipe', handle.fd], timeout: TIMEOUT_MS, killSignal: 'SIGKILL' },
    )
    const stop = () => child.kill('SIGKILL')
    signal?.addEventListener('abort', stop)
    let output = ''
    for (const stream of [child.stdout!, child.stderr!]) {
      stream.setEncoding('utf8').on('data', (text: string) => {
        if (output.length < OUTPUT_MAX_BYTES) output += text
      })
    }
    const [code] = (await once(child, 'close').finally(() => signal?.removeEventListener('abort', stop))) as [
      number | null,
    ]
    signal?.throwIfAborted()
    return { exitCode: code ?? -1, output }
  } finally {
    await handle.close()
    await chown(file, 0, 0)
  }
}

/**
 * A named line at which a test can kill or hold the process that reaches it.
 *
 *   await crashPoint('pause.begun')
 *
 * Without WARREN_CRASH_POINTS it does nothing. Otherwise that variable names a directory, and the content of the file
 * with the name of the point decides:
 *
 *   kill    the process is killed with SIGKILL. The file is first renamed to `<name>.reached`, so exactly one process is
 *           killed and the next one passes
 *   hold    `<name>.reached` is written, and the process waits until the file is removed; meanwhile the test can kill
 *           another process
 *
 * Any other content throws, so that a test cannot pass because of a typing error.
 */
import { access, readFile, rename, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'

export const CRASH_POINTS_VARIABLE = 'WARREN_CRASH_POINTS'
const POLL_MS = 5

export function crashPoint(name: string): Promise<void> | undefined {
  const directory = process.env[CRASH_POINTS_VARIABLE]
  return directory ? reach(path.join(directory, name)) : undefined
}

async function reach(file: string): Promise<void> {
  const action = (await readAction(file))?.trim()
  // Empty: the test has created the file but not written its content yet.
  if (!action) return
  if (action === 'kill') return kill(file)
  if (action !== 'hold') throw new Error(`${file} contains "${action}"; it must contain kill or hold`)
  await writeFile(`${file}.reached`, '')
  while (await exists(file)) await delay(POLL_MS)
}

async function kill(file: string): Promise<void> {
  try {
    await rename(file, `${file}.reached`)
  } catch {
    return // Another process reached it first and was killed.
  }
  process.kill(process.pid, 'SIGKILL')
  await new Promise(() => {}) // The signal ends the process here.
}

async function readAction(file: string): Promise<string | undefined> {
  try {
    return await readFile(file, 'utf8')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
    throw error
  }
}

const exists = (file: string): Promise<boolean> =>
  access(file).then(
    () => true,
    () => false,
  )

/**
 * A named line at which a test can stop the process that reaches it.
 *
 *   await crashPoint('pause.begun')
 *
 * Nothing happens unless WARREN_CRASH_POINTS names a directory. Then a file there with the name of the point says what
 * becomes of a process that comes by:
 *
 *   kill    it ends like by `kill -9`. The file is renamed to `<name>.reached` first, so one process dies, once, and
 *           the next one lives
 *   hold    `<name>.reached` is written, and the process waits here until the file is removed: time to kill another
 *
 * Any other content is a mistake of the test and throws, so that a test cannot pass because of a misspelt order.
 */
import { access, readFile, rename, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'

export const CRASH_POINTS_VARIABLE = 'WARREN_CRASH_POINTS'
const LOOK_MS = 5

export function crashPoint(name: string): Promise<void> | undefined {
  const directory = process.env[CRASH_POINTS_VARIABLE]
  return directory ? reach(path.join(directory, name)) : undefined
}

async function reach(file: string): Promise<void> {
  const order = (await readOrder(file))?.trim()
  // Empty: whoever writes it has made the file and not yet its content.
  if (!order) return
  if (order === 'kill') return kill(file)
  if (order !== 'hold') throw new Error(`${file} says ${order}: neither kill nor hold`)
  await writeFile(`${file}.reached`, '')
  while (await exists(file)) await delay(LOOK_MS)
}

async function kill(file: string): Promise<void> {
  try {
    await rename(file, `${file}.reached`)
  } catch {
    return // Another process was here first, and died for it.
  }
  process.kill(process.pid, 'SIGKILL')
  await new Promise(() => {}) // Not a line further.
}

async function readOrder(file: string): Promise<string | undefined> {
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

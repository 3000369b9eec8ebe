/**
 * Reads a file in a folder that belongs to a service. The service could have put anything there: a link to a file that
 * only root can read, which root does not follow, or a pipe, which would never end.
 */
import { constants } from 'node:fs'
import { open } from 'node:fs/promises'

/** More than any key or certificate. */
const FILE_MAX_BYTES = 2 ** 20

export async function readServiceFile(file: string): Promise<string> {
  const links = process.getuid?.() === 0 ? constants.O_NOFOLLOW : 0
  const handle = await open(file, constants.O_RDONLY | constants.O_NONBLOCK | links)
  try {
    const found = await handle.stat()
    if (!found.isFile() || found.size > FILE_MAX_BYTES) throw new Error(`${file} is not a file of the expected kind`)
    return await handle.readFile('utf8')
  } finally {
    await handle.close()
  }
}

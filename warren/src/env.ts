/** `warren env`: for scripts, so nothing but the two lines on stdout. */
import { readFile } from 'node:fs/promises'
import { readBox } from './config.ts'
import { isAlive, readInstance } from './instance.ts'

export async function printEnv(): Promise<void> {
  const box = readBox()
  const instance = await readInstance(box)
  if (!instance?.baseUrl || !isAlive(instance)) {
    throw new Error(`Warren is not running on ${box.dataDir}; start it with npm start`)
  }
  const key = (await readFile(box.keyFile, 'utf8')).trim()
  process.stdout.write(`WARREN_BASE_URL=${instance.baseUrl}\nWARREN_API_KEY=${key}\n`)
}

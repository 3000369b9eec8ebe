/** `warren ca`: for `curl --cacert`, or for whoever wants to trust it. */
import { readFile } from 'node:fs/promises'
import path from 'node:path'
import { readBox } from './config.ts'

export async function printAuthority(): Promise<void> {
  const folder = process.env.WARREN_INGRESS_CA_DIR || readBox().caDir
  const pem = await readFile(path.join(folder, 'ca.pem'), 'utf8').catch(() => undefined)
  if (pem === undefined) throw new Error(`there is no local authority in ${folder} yet; npm start makes it`)
  process.stdout.write(pem)
}

/** `warren ca`: prints the certificate of the local authority, for `curl --cacert` or a trust store. */

import path from 'node:path'
import { readServiceFile } from '@warren/kit/confine/read-service-file'
import { warrenCommand } from '@warren/kit/warren-command'
import { readInstanceConfig } from './config.ts'

export async function printCaCertificate(): Promise<void> {
  const { caDir } = readInstanceConfig()
  const pem = await readServiceFile(path.join(caDir, 'ca.pem')).catch(() => undefined)
  if (pem === undefined) {
    throw new Error(
      `there is no certificate authority in ${caDir} yet; start Warren with ${warrenCommand()} start, which creates it`,
    )
  }
  process.stdout.write(pem)
}

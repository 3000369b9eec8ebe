/**
 * Where `warren disks` takes the credentials of a store from. A secret on the command line would be seen by every user of the
 * machine and stay in the history of the shell, so it comes from the environment or from a file.
 */
import { readFile } from 'node:fs/promises'
import { text as readAll } from 'node:stream/consumers'
import type { DiskCredentials } from '@warren/protocol'

export type CredentialOptions = { accessKey?: string; secretKeyFile?: string }

export async function readCredentials(
  { accessKey, secretKeyFile }: CredentialOptions,
  env: NodeJS.ProcessEnv = process.env,
): Promise<DiskCredentials> {
  const access_key = accessKey ?? env.AWS_ACCESS_KEY_ID
  if (!access_key) throw new Error('no access key; set AWS_ACCESS_KEY_ID or give --access-key <key>')
  const secret_key = secretKeyFile === undefined ? env.AWS_SECRET_ACCESS_KEY : await readSecret(secretKeyFile)
  if (!secret_key) {
    throw new Error('no secret key; set AWS_SECRET_ACCESS_KEY or give --secret-key-file <file>, with - for stdin')
  }
  return { access_key, secret_key }
}

const readSecret = async (file: string): Promise<string> =>
  (file === '-' ? await readAll(process.stdin) : await readFile(file, 'utf8')).trim()

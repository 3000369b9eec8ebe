/**
 * Reads the keys from WARREN_SECRETS_KEY, or from a file that is created on the first start. Both may hold several keys:
 * one encrypts, the others are needed until a rotation has ended (rotate.ts).
 */
import { randomUUID } from 'node:crypto'
import { link, mkdir, rm, stat } from 'node:fs/promises'
import path from 'node:path'
import { readServiceFile } from '@warren/kit/confine/read-service-file'
import { writeFileDurably } from '@warren/kit/files'
import { newSecretKey, parseKey, renderKey, type SecretKey } from './cipher.ts'

export type KeySource = { value: string; file: string }

export const keySourceOf = (config: { secretsKey: string; secretsKeyFile: string }): KeySource => ({
  value: config.secretsKey,
  file: config.secretsKeyFile,
})

/** Undefined if the keys are in a file that does not exist. */
export async function readKeys({ value, file }: KeySource): Promise<SecretKey[] | undefined> {
  if (value !== '') return parseKeys(value, 'WARREN_SECRETS_KEY')
  if (file === '') {
    throw new Error(
      'WARREN_SECRETS_KEY is not set. It encrypts secrets in the database; make a key with `openssl rand -hex 32`, ' +
        'keep a copy of it, and give the same key to every process on this database',
    )
  }
  const text = await readServiceFile(file).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined
    throw new Error(`failed to read the secrets key in ${file}`, { cause: error })
  })
  return text === undefined ? undefined : parseKeys(text, file)
}

function parseKeys(text: string, where: string): SecretKey[] {
  const parts = text.split(/[\s,]+/).filter((part) => part !== '')
  if (parts.length === 0) throw new Error(`${where} has no key; restore it from your back-up`)
  try {
    return parts.map(parseKey)
  } catch (error) {
    throw new Error(`${where} is invalid: ${(error as Error).message}`)
  }
}

/** Creates the file with a first key. If another process creates it at the same time, both use the same one. */
export async function createKeyFile(file: string): Promise<void> {
  // Not the process id: processes of several containers may share the folder.
  const temporary = path.join(path.dirname(file), `.${path.basename(file)}.${randomUUID()}`)
  await writeKeyFile(temporary, [newSecretKey()])
  try {
    await link(temporary, file)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
  } finally {
    await rm(temporary, { force: true })
  }
}

/** The folder may belong to the control plane's own user, while root runs `warren admin`. The file gets the same owner. */
export async function writeKeyFile(file: string, keys: SecretKey[]): Promise<void> {
  await mkdir(path.dirname(file), { recursive: true, mode: 0o700 })
  const { uid, gid } = await stat(path.dirname(file))
  const owner = process.getuid?.() === 0 ? { uid, gid } : undefined
  await writeFileDurably(file, `${keys.map(renderKey).join('\n')}\n`, 0o600, owner)
}

/**
 * The keys of this process, and how it encrypts with them.
 *
 * The database says which key is the current one (secret_keys). A process learns of a rotation with its heartbeat
 * (jobs/processes.ts), or when it reads a secret of a key that it does not have, and then reads its keys again.
 */
import { keyIdOf, openText, type SecretKey, type SecretPlace, sealText } from './cipher.ts'
import { type KeySource, readKeys } from './key-source.ts'

export type Secrets = {
  seal(place: SecretPlace, text: string): string
  open(place: SecretPlace, sealed: string): Promise<string>
  /** The ids of all keys of this process; it encrypts with the first. */
  keyIds(): string[]
  /** Encrypts with this key from now on, if the process has it or finds it in its source. Returns whether it does. */
  useKey(id: string): Promise<boolean>
}

export function createSecrets(keys: readonly SecretKey[], currentId: string, source?: KeySource): Secrets {
  let known = new Map(keys.map((key) => [key.id, key]))
  let current = known.get(currentId)
  if (!current) throw new Error(`secrets key ${currentId} is missing`)

  async function findKey(id: string): Promise<SecretKey | undefined> {
    const found = known.get(id)
    if (found || !source) return found
    const read = (await readKeys(source)) ?? []
    known = new Map([...known.values(), ...read].map((key) => [key.id, key]))
    return known.get(id)
  }

  return {
    seal: (place, text) => sealText(current!, place, text), // Checked above.
    async open(place, sealed) {
      const id = keyIdOf(sealed) ?? ''
      const key = await findKey(id)
      if (!key) throw new Error(`failed to decrypt ${place.table}.${place.column}: secrets key ${id} is missing`)
      return openText(key, place, sealed)
    },
    keyIds: () => [current!.id, ...[...known.keys()].filter((id) => id !== current!.id)],
    async useKey(id) {
      const key = await findKey(id)
      if (key) current = key
      return key !== undefined
    },
  }
}

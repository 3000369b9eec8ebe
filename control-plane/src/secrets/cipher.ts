/**
 * Encrypts secrets for the database: AES-256-GCM with a random 96-bit nonce.
 *
 *   warren1.<key id>.<base64url of nonce, tag and ciphertext>
 *
 * The place of a secret (table, column, row) and the key's id are authenticated with it. A ciphertext that is copied to
 * another row, column or table cannot be opened there. Random nonces are safe for 2^32 secrets per key; rotate before.
 */
import { createCipheriv, createDecipheriv, hash, randomBytes } from 'node:crypto'

export type SecretKey = { id: string; bytes: Buffer }

/** Where a secret is stored. `row` is the primary key. */
export type SecretPlace = { table: string; column: string; row: string }

const VERSION = 'warren1'
const KEY_BYTES = 32
const NONCE_BYTES = 12
const TAG_BYTES = 16

export const newSecretKey = (): SecretKey => toKey(randomBytes(KEY_BYTES))

/** The form in which keys are written to a file or a setting. */
export const renderKey = (key: SecretKey): string => key.bytes.toString('hex')

/** Parses 32 bytes in hexadecimal or base64, or throws. The text is not part of the error. */
export function parseKey(text: string): SecretKey {
  const bytes = /^[0-9a-fA-F]{64}$/.test(text) ? Buffer.from(text, 'hex') : Buffer.from(text, 'base64')
  const isBase64 = /^[A-Za-z0-9+/_-]{43}=?$/.test(text)
  if (bytes.length !== KEY_BYTES || !(isBase64 || text.length === 2 * KEY_BYTES)) {
    throw new Error('a key must be 32 bytes in hexadecimal or base64, for example from `openssl rand -hex 32`')
  }
  return toKey(bytes)
}

/** The id tells nothing about the key. */
const toKey = (bytes: Buffer): SecretKey => ({
  id: hash('sha256', Buffer.concat([Buffer.from('warren secrets key id\0'), bytes]), 'hex').slice(0, 16),
  bytes,
})

export const isSealed = (text: string): boolean => text.startsWith(`${VERSION}.`)

export const keyIdOf = (sealed: string): string | undefined => (isSealed(sealed) ? sealed.split('.')[1] : undefined)

export function sealText(key: SecretKey, place: SecretPlace, text: string): string {
  const nonce = randomBytes(NONCE_BYTES)
  const cipher = createCipheriv('aes-256-gcm', key.bytes, nonce, { authTagLength: TAG_BYTES })
  cipher.setAAD(boundData(key.id, place))
  const ciphertext = Buffer.concat([cipher.update(text, 'utf8'), cipher.final()])
  return `${VERSION}.${key.id}.${Buffer.concat([nonce, cipher.getAuthTag(), ciphertext]).toString('base64url')}`
}

/** Throws if the text was changed, or was sealed for another place or with another key. */
export function openText(key: SecretKey, place: SecretPlace, sealed: string): string {
  const where = `${place.table}.${place.column} of ${place.row}`
  const [version, keyId, encoded = ''] = sealed.split('.')
  const bytes = Buffer.from(encoded, 'base64url')
  if (version !== VERSION || keyId !== key.id || bytes.length < NONCE_BYTES + TAG_BYTES) {
    throw new Error(`failed to decrypt ${where}: it is not a secret of key ${key.id}`)
  }
  const nonce = bytes.subarray(0, NONCE_BYTES)
  const decipher = createDecipheriv('aes-256-gcm', key.bytes, nonce, { authTagLength: TAG_BYTES })
  decipher.setAAD(boundData(key.id, place))
  decipher.setAuthTag(bytes.subarray(NONCE_BYTES, NONCE_BYTES + TAG_BYTES))
  try {
    const text = decipher.update(bytes.subarray(NONCE_BYTES + TAG_BYTES))
    return Buffer.concat([text, decipher.final()]).toString('utf8')
  } catch (error) {
    throw new Error(`failed to decrypt ${where}: it was changed, or belongs to another row`, { cause: error })
  }
}

/** JSON, so that no two places have the same text. */
const boundData = (keyId: string, { table, column, row }: SecretPlace): Buffer =>
  Buffer.from(JSON.stringify([VERSION, keyId, table, column, row]))

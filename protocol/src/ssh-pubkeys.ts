/**
 * OpenSSH public keys (spec 4.11; wire 13). A key becomes a line of `authorized_keys` in the guest, so a text that is
 * more than one line, or carries options, is not a key. The blob is read to its end: name, fields, nothing after.
 */
import { type Static, Type } from 'typebox'
import { decodeBase64, encodeBase64 } from './base64.ts'

/** What OpenSSH itself reads at most. */
const SSH_KEY_MAX_CHARACTERS = 16 * 1024
/** Of all keys of a sandbox: they travel to its guest in one message. */
const SSH_KEYS_MAX_CHARACTERS = 256 * 1024
/** Below this OpenSSH refuses to log in. */
const RSA_MIN_BITS = 1024

export const SshPubkeysBody = Type.Object({ keys: Type.Array(Type.String({ description: 'OpenSSH public key.' })) })
export type SshPubkeysBody = Static<typeof SshPubkeysBody>

export const SshPubkeysView = Type.Object({ count: Type.Integer({ description: 'Of all keys after the merge.' }) })
export type SshPubkeysView = Static<typeof SshPubkeysView>

export type SshPublicKey = {
  algorithm: string
  blob: Uint8Array
  comment: string
  /** Algorithm and blob: what makes two keys the same, whatever their comments. */
  identity: string
}

/** Reads what follows the algorithm's name in the blob; false if it is not such a key. */
type KeyReader = (blob: BlobReader) => boolean

const ed25519: KeyReader = (blob) => blob.take()?.length === 32

const rsa: KeyReader = (blob) => {
  const exponent = blob.take()
  const modulus = blob.take()
  return !!exponent && bitLength(exponent) > 1 && !!modulus && bitLength(modulus) >= RSA_MIN_BITS
}

/** An uncompressed point: 4, then both coordinates. */
const ecdsa =
  (curve: string, coordinateBytes: number): KeyReader =>
  (blob) => {
    if (blob.takeText() !== curve) return false
    const point = blob.take()
    return point?.length === 1 + 2 * coordinateBytes && point[0] === 4
  }

/** Keys on a security token end with the application they are for, usually `ssh:`. */
const onToken =
  (key: KeyReader): KeyReader =>
  (blob) =>
    key(blob) && !!blob.take()

const ALGORITHMS: ReadonlyMap<string, KeyReader> = new Map([
  ['ssh-ed25519', ed25519],
  ['ssh-rsa', rsa],
  ['ecdsa-sha2-nistp256', ecdsa('nistp256', 32)],
  ['ecdsa-sha2-nistp384', ecdsa('nistp384', 48)],
  ['ecdsa-sha2-nistp521', ecdsa('nistp521', 66)],
  ['sk-ssh-ed25519@openssh.com', onToken(ed25519)],
  ['sk-ecdsa-sha2-nistp256@openssh.com', onToken(ecdsa('nistp256', 32))],
])

/** The key, or an error text. */
export function parseSshPublicKey(text: string): SshPublicKey | string {
  const line = text.trim()
  if (line.length > SSH_KEY_MAX_CHARACTERS) return `is longer than ${SSH_KEY_MAX_CHARACTERS} characters`
  if (line.includes('PRIVATE KEY')) return 'is a private key, give the public one'
  if (/[^\P{Cc}\t]/u.test(line)) return 'must be one line without control characters'
  const [algorithm = '', base64 = '', ...comment] = line.split(/[ \t]+/)
  const readKey = ALGORITHMS.get(algorithm)
  if (!readKey) return `must begin with one of ${[...ALGORITHMS.keys()].join(', ')}`
  const blob = decodeBase64(base64)
  // decodeBase64 forgives what OpenSSH does not.
  if (!blob?.length || encodeBase64(blob) !== base64) return 'has no valid base64 after the algorithm'
  const reader = new BlobReader(blob)
  if (reader.takeText() !== algorithm) return `is not a key of the algorithm ${algorithm}`
  if (!readKey(reader) || !reader.isAtEnd()) return `is not a valid ${algorithm} key`
  return { algorithm, blob, comment: comment.join(' '), identity: `${algorithm} ${base64}` }
}

/** For the field `keys`; names the bad one by its place. */
export function checkSshPublicKeys(keys: readonly string[]): string | undefined {
  for (const [index, key] of keys.entries()) {
    const parsed = parseSshPublicKey(key)
    if (typeof parsed === 'string') return `key ${index + 1} ${parsed}`
  }
  const characters = keys.reduce((sum, key) => sum + key.length, 0)
  if (characters > SSH_KEYS_MAX_CHARACTERS) return `are more than ${SSH_KEYS_MAX_CHARACTERS} characters together`
  return undefined
}

/** Both lists, each key once; the first spelling stays. For checked keys only. */
export function mergeSshPublicKeys(known: readonly string[], added: readonly string[]): string[] {
  const byIdentity = new Map<string, string>()
  for (const text of [...known, ...added]) {
    const key = parseSshPublicKey(text)
    const identity = typeof key === 'string' ? text : key.identity
    if (!byIdentity.has(identity)) byIdentity.set(identity, text.trim())
  }
  return [...byIdentity.values()]
}

/** A blob is a row of strings, each behind its length in four bytes. */
class BlobReader {
  #rest: Uint8Array

  constructor(blob: Uint8Array) {
    this.#rest = blob
  }

  take(): Uint8Array | undefined {
    if (this.#rest.length < 4) return undefined
    const { buffer, byteOffset } = this.#rest
    const end = 4 + new DataView(buffer, byteOffset, 4).getUint32(0)
    if (this.#rest.length < end) return undefined
    const taken = this.#rest.subarray(4, end)
    this.#rest = this.#rest.subarray(end)
    return taken
  }

  takeText(): string | undefined {
    const taken = this.take()
    return taken && new TextDecoder().decode(taken)
  }

  isAtEnd(): boolean {
    return this.#rest.length === 0
  }
}

/** Of a number with its highest byte first; 0 for a negative one, whose highest bit is set. */
function bitLength(number: Uint8Array): number {
  if ((number[0] ?? 0) >= 0x80) return 0
  const first = number.findIndex((byte) => byte !== 0)
  return first === -1 ? 0 : (number.length - first) * 8 - Math.clz32(number[first]!) + 24
}

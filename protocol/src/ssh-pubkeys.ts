/**
 * OpenSSH public keys. A key becomes a line of `authorized_keys` in the guest, so text with more than one line or with
 * options is refused. The whole blob is parsed: algorithm, fields, and nothing after them.
 */
import { type Static, Type } from 'typebox'
import { decodeBase64, encodeBase64 } from './base64.ts'

/** Limit of OpenSSH. */
const SSH_KEY_MAX_CHARACTERS = 16 * 1024
/** Limit for all keys of a sandbox, which are sent to its guest in one message. */
const SSH_KEYS_MAX_CHARACTERS = 256 * 1024
/** OpenSSH refuses shorter keys. */
const RSA_MIN_BITS = 1024

export const SshPubkeysBody = Type.Object({
  keys: Type.Array(Type.String({ description: 'OpenSSH public key, one line.' })),
})
export type SshPubkeysBody = Static<typeof SshPubkeysBody>

export const SshPubkeysView = Type.Object({
  count: Type.Integer({ description: 'Number of keys that the sandbox has now.' }),
})
export type SshPubkeysView = Static<typeof SshPubkeysView>

export type SshPublicKey = {
  algorithm: string
  blob: Uint8Array
  comment: string
  /** Algorithm and blob. Keys that differ only in their comment have the same identity. */
  identity: string
}

/** Reads what follows the algorithm in the blob. False if it is not a key of that algorithm. */
type KeyReader = (blob: BlobReader) => boolean

const ed25519: KeyReader = (blob) => blob.take()?.length === 32

const rsa: KeyReader = (blob) => {
  const exponent = blob.take()
  const modulus = blob.take()
  return !!exponent && bitLength(exponent) > 1 && !!modulus && bitLength(modulus) >= RSA_MIN_BITS
}

/** The point is uncompressed: a byte 4, then both coordinates. */
const ecdsa =
  (curve: string, coordinateBytes: number): KeyReader =>
  (blob) => {
    if (blob.takeText() !== curve) return false
    const point = blob.take()
    return point?.length === 1 + 2 * coordinateBytes && point[0] === 4
  }

/** The key of a security token (FIDO) also contains the application, usually `ssh:`. */
const securityToken =
  (key: KeyReader): KeyReader =>
  (blob) =>
    key(blob) && !!blob.take()

const ALGORITHMS: ReadonlyMap<string, KeyReader> = new Map([
  ['ssh-ed25519', ed25519],
  ['ssh-rsa', rsa],
  ['ecdsa-sha2-nistp256', ecdsa('nistp256', 32)],
  ['ecdsa-sha2-nistp384', ecdsa('nistp384', 48)],
  ['ecdsa-sha2-nistp521', ecdsa('nistp521', 66)],
  ['sk-ssh-ed25519@openssh.com', securityToken(ed25519)],
  ['sk-ecdsa-sha2-nistp256@openssh.com', securityToken(ecdsa('nistp256', 32))],
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
  // decodeBase64 accepts variants that OpenSSH refuses.
  if (!blob?.length || encodeBase64(blob) !== base64) return 'has no valid base64 after the algorithm'
  const reader = new BlobReader(blob)
  if (reader.takeText() !== algorithm) return `is not a key of the algorithm ${algorithm}`
  if (!readKey(reader) || !reader.isAtEnd()) return `is not a valid ${algorithm} key`
  return { algorithm, blob, comment: comment.join(' '), identity: `${algorithm} ${base64}` }
}

/** Error text for the field `keys`, or undefined. It names the position of the invalid key. */
export function checkSshPublicKeys(keys: readonly string[]): string | undefined {
  for (const [index, key] of keys.entries()) {
    const parsed = parseSshPublicKey(key)
    if (typeof parsed === 'string') return `key ${index + 1} ${parsed}`
  }
  const characters = keys.reduce((sum, key) => sum + key.length, 0)
  if (characters > SSH_KEYS_MAX_CHARACTERS) return `are more than ${SSH_KEYS_MAX_CHARACTERS} characters together`
  return undefined
}

/** Both lists without duplicates; the first occurrence is retained. All keys must be valid. */
export function mergeSshPublicKeys(existing: readonly string[], added: readonly string[]): string[] {
  const byIdentity = new Map<string, string>()
  for (const text of [...existing, ...added]) {
    const key = parseSshPublicKey(text)
    const identity = typeof key === 'string' ? text : key.identity
    if (!byIdentity.has(identity)) byIdentity.set(identity, text.trim())
  }
  return [...byIdentity.values()]
}

/** A blob is a sequence of byte strings, each preceded by its length in four bytes. */
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

/** Bit length of a big-endian integer; 0 for a negative one, whose highest bit is set. */
function bitLength(number: Uint8Array): number {
  if ((number[0] ?? 0) >= 0x80) return 0
  const first = number.findIndex((byte) => byte !== 0)
  return first === -1 ? 0 : (number.length - first) * 8 - Math.clz32(number[first]!) + 24
}

/**
 * Recovers the address behind an EIP-191 signature. Every unauthenticated request can force one recovery, so it is done by
 * the native `secp256k1`, some twenty times faster than JavaScript. Where that has no binary for the machine, its package
 * would silently use JavaScript code; viem is used instead, and the log says so.
 *
 * Both refuse what is not canonical: another v than 27, 28, 0 or 1, and s above half of the curve's order.
 */
import { createRequire } from 'node:module'
import type { Log } from '@warren/kit/log'
import { hashMessage, keccak256, recoverAddress } from 'viem'
import { privateKeyToAccount } from 'viem/accounts'

type Secp256k1 = Pick<typeof import('secp256k1'), 'ecdsaRecover'>

/** The address in lower case, or undefined when the signature is not valid for any address. */
export type SignatureVerifier = {
  isNative: boolean
  recover(message: string, signature: `0x${string}`): Promise<string | undefined>
}

export async function createVerifier(log: Pick<Log, 'warn'>): Promise<SignatureVerifier> {
  const native = loadNative()
  if (native) {
    const verifier = createNativeVerifier(native)
    if (await passesSelfTest(verifier)) return verifier
    log.warn('the native secp256k1 does not agree with viem on a test signature; using the slower viem')
  } else {
    log.warn('no native secp256k1 for this machine; verifying signatures with the slower viem')
  }
  return createViemVerifier()
}

/** Throws instead of falling back to JavaScript, unlike the entry point of the package. */
function loadNative(): Secp256k1 | undefined {
  try {
    return createRequire(import.meta.url)('secp256k1/bindings.js') as Secp256k1
  } catch {
    return undefined
  }
}

export function createNativeVerifier(secp256k1: Secp256k1): SignatureVerifier {
  return {
    isNative: true,
    async recover(message, signature) {
      const parsed = parseSignature(signature)
      if (!parsed) return undefined
      try {
        const publicKey = secp256k1.ecdsaRecover(parsed.compact, parsed.recovery, hashMessage(message, 'bytes'), false)
        // The first byte only says that the point is not compressed.
        return `0x${keccak256(publicKey.subarray(1)).slice(-40)}`
      } catch {
        return undefined // No point of the curve belongs to it.
      }
    },
  }
}

export function createViemVerifier(): SignatureVerifier {
  return {
    isNative: false,
    async recover(message, signature) {
      const parsed = parseSignature(signature)
      if (!parsed) return undefined
      const v = 27 + parsed.recovery
      const canonical = `0x${Buffer.from(parsed.compact).toString('hex')}${v.toString(16)}` as const
      try {
        return (await recoverAddress({ hash: hashMessage(message), signature: canonical })).toLowerCase()
      } catch {
        return undefined
      }
    },
  }
}

const HALF_ORDER = Buffer.from('7fffffffffffffffffffffffffffffff5d576e7357a4501ddfe92f46681b20a0', 'hex')

/** The shape, 65 bytes in hexadecimal, was checked with the headers. */
function parseSignature(signature: `0x${string}`): { compact: Uint8Array; recovery: 0 | 1 } | undefined {
  const bytes = Buffer.from(signature.slice(2), 'hex')
  if (bytes.length !== 65) return undefined
  const v = bytes[64]!
  const recovery = v >= 27 ? v - 27 : v
  if (recovery !== 0 && recovery !== 1) return undefined
  if (Buffer.compare(bytes.subarray(32, 64), HALF_ORDER) > 0) return undefined
  return { compact: new Uint8Array(bytes.subarray(0, 64)), recovery }
}

/** A well-known key, used for nothing else. */
const TEST_KEY = `0x${'01'.repeat(32)}` as const

async function passesSelfTest(verifier: SignatureVerifier): Promise<boolean> {
  const account = privateKeyToAccount(TEST_KEY)
  const message = 'warren gateway self-test'
  const signature = await account.signMessage({ message })
  return (await verifier.recover(message, signature)) === account.address.toLowerCase()
}

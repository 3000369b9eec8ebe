/** Verifies the signature of a webhook as a receiver should: over the raw body, in constant time, and not too old. */
import { createHmac, timingSafeEqual } from 'node:crypto'
import { WEBHOOK_SIGNATURE_PREFIX, webhookSignedText } from '@warren/protocol'

/** Someone who has recorded a delivery must not be able to repeat it later. */
const AGE_MAX_S = 300

export type SignedMessage = { timestamp: string | undefined; signature: string | undefined; body: string }

/** Undefined if the message is genuine, otherwise what is wrong with it. */
export function checkSignature(secret: string, message: SignedMessage, nowMs = Date.now()): string | undefined {
  const { timestamp, signature, body } = message
  if (timestamp === undefined || signature === undefined) return 'it is not signed'
  const text = webhookSignedText(timestamp, body)
  const expected = WEBHOOK_SIGNATURE_PREFIX + createHmac('sha256', secret).update(text).digest('hex')
  const [given, right] = [Buffer.from(signature), Buffer.from(expected)]
  if (given.length !== right.length || !timingSafeEqual(given, right)) return 'the signature is wrong'
  const isOld = !(Math.abs(nowMs / 1000 - Number(timestamp)) <= AGE_MAX_S)
  return isOld ? 'the timestamp is too old' : undefined
}

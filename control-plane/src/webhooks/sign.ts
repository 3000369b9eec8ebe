import { createHmac } from 'node:crypto'
import { WEBHOOK_SIGNATURE_PREFIX, webhookSignedText } from '@warren/protocol'

/** Value of X-Webhook-Signature. The key is the whole secret, with its prefix. */
export const signWebhook = (secret: string, timestamp: number, body: string): string =>
  WEBHOOK_SIGNATURE_PREFIX + createHmac('sha256', secret).update(webhookSignedText(timestamp, body)).digest('hex')

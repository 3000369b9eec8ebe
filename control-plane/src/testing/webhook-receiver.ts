/** A receiver of webhooks inside the test process. It checks every signature as a user would. */
import assert from 'node:assert/strict'
import { createHmac, timingSafeEqual } from 'node:crypto'
import { once } from 'node:events'
import { createServer, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after } from 'node:test'
import type { WebhookEvent } from '@warren/protocol'

export type Received = { event: WebhookEvent; timestamp: number; delivery: string; headers: Record<string, unknown> }

export type TestReceiver = {
  url: string
  /** Set after the endpoint was created. Until then signatures are not checked. */
  secret: string | undefined
  received: Received[]
  /** Responds 200 unless the test replaces it. */
  respond: (response: ServerResponse, received: Received) => void
  actions(): string[]
  close(): void
}

export async function startTestReceiver(): Promise<TestReceiver> {
  const server = createServer(async (request, response) => {
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk as Buffer)
    const body = Buffer.concat(chunks).toString()
    const timestamp = request.headers['x-webhook-timestamp'] as string
    if (receiver.secret) {
      const expected = `sha256=${createHmac('sha256', receiver.secret).update(`${timestamp}.${body}`).digest('hex')}`
      const given = request.headers['x-webhook-signature'] as string
      assert.ok(timingSafeEqual(Buffer.from(given), Buffer.from(expected)), 'wrong signature')
    }
    const received = {
      event: JSON.parse(body),
      timestamp: Number(timestamp),
      delivery: request.headers['x-webhook-delivery'] as string,
      headers: { ...request.headers, method: request.method },
    }
    receiver.received.push(received)
    receiver.respond(response, received)
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const receiver: TestReceiver = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/hook`,
    secret: undefined,
    received: [],
    respond: (response) => response.end('ok'),
    actions: () => receiver.received.map(({ event }) => event.event),
    close() {
      server.closeAllConnections()
      server.close()
    },
  }
  after(() => receiver.close())
  return receiver
}

/**
 * A receiver of webhooks in a separate process, with many endpoints: the path is `/<kind>/<number>`. It verifies every
 * signature with the secrets that the test sends, and reports what it received when it is asked.
 *
 *   healthy   200
 *   slow      200 after 100 ms
 *   refusing  500
 *   silent    no response
 *   redirect  307 to the healthy endpoint
 *   dying     the first request of every second delivery is cut off in the middle, all others 200
 */
import { createHmac, timingSafeEqual } from 'node:crypto'
import { createServer, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'

export type ReceiverReport = {
  wrongSignatures: number
  /** By path: the times of the attempts of each delivery that was acknowledged, and of each that was not. */
  endpoints: Record<string, { acknowledged: Record<string, number[]>; other: Record<string, number[]> }>
}

const secrets = new Map<string, string>()
const report: ReceiverReport = { wrongSignatures: 0, endpoints: {} }
const seen = new Set<string>()

const server = createServer(async (request, response) => {
  const chunks: Buffer[] = []
  for await (const chunk of request) chunks.push(chunk as Buffer)
  const body = Buffer.concat(chunks).toString()
  const path = request.url!
  const timestamp = String(request.headers['x-webhook-timestamp'])
  const expected = createHmac('sha256', secrets.get(path) ?? '')
    .update(`${timestamp}.${body}`)
    .digest('hex')
  const given = Buffer.from(String(request.headers['x-webhook-signature']))
  const right = Buffer.from(`sha256=${expected}`)
  if (given.length !== right.length || !timingSafeEqual(given, right)) report.wrongSignatures++

  const delivery = String(request.headers['x-webhook-delivery'])
  const isAcknowledged = respond(path, delivery, response)
  report.endpoints[path] ??= { acknowledged: {}, other: {} }
  const list = report.endpoints[path][isAcknowledged ? 'acknowledged' : 'other']
  list[delivery] ??= []
  list[delivery].push(Number(timestamp))
})

function respond(path: string, delivery: string, response: ServerResponse): boolean {
  const kind = path.split('/')[1]
  switch (kind) {
    case 'refusing':
      response.writeHead(500).end()
      return false
    case 'silent':
      return false
    case 'redirect':
      response.writeHead(307, { location: '/healthy/0' }).end()
      return false
    case 'slow':
      setTimeout(() => response.end(), 100)
      return true
    case 'dying': {
      const isFirst = !seen.has(delivery)
      seen.add(delivery)
      if (isFirst && Number.parseInt(delivery[0]!, 16) % 2 === 0) {
        response.socket?.destroy()
        return false
      }
      break
    }
  }
  response.end()
  return true
}

process.on('message', (message: { secrets?: [string, string][]; report?: true }) => {
  for (const [path, secret] of message.secrets ?? []) secrets.set(path, secret)
  if (message.report) process.send?.({ report })
})
process.on('disconnect', () => process.exit(0))
server.listen(0, '127.0.0.1', () => process.send?.({ port: (server.address() as AddressInfo).port }))

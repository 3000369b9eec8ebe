/** A JSON-RPC endpoint in front of a test chain that a test can make lie or hang. */
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after } from 'node:test'

type Call = { method: string; params: unknown[] }
// biome-ignore lint/suspicious/noExplicitAny: whatever the chain answered.
type Answer = any
/** Returns what is answered instead of `result`. A promise that never settles is a node that hangs. */
export type Lie = (call: Call, result: Answer) => Answer | Promise<Answer>

/** Runs before a call reaches the chain. When it throws, the node fails. */
export type Before = (call: Call) => void | Promise<void>

export async function startRpcProxy(
  target: string,
  lie: Lie,
  path = '',
  before: Before = () => {},
): Promise<{ url: string; calls: string[] }> {
  const calls: string[] = []
  const server = createServer(async (request, response) => {
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk as Buffer)
    const body = Buffer.concat(chunks).toString('utf8')
    const call = JSON.parse(body) as Call & { id: number }
    calls.push(call.method)
    try {
      await before(call)
    } catch {
      return void response.writeHead(503).end()
    }
    const answer = (await (
      await fetch(target, { method: 'POST', headers: { 'content-type': 'application/json' }, body })
    ).json()) as { result: Answer }
    const result = await lie(call, answer.result)
    response.setHeader('content-type', 'application/json').end(JSON.stringify({ ...answer, result }))
  })
  server.listen(0, '127.0.0.1')
  await new Promise((resolve) => server.once('listening', resolve))
  after(() => {
    server.closeAllConnections()
    server.close()
  })
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}${path}`, calls }
}

/** How the fakes read and answer. */
import type { ServerHttp2Stream } from 'node:http2'

export function answerJson(stream: ServerHttp2Stream, status: number, body: unknown): void {
  if (stream.destroyed || stream.headersSent) return
  stream.respond({ ':status': status, 'content-type': 'application/json' })
  stream.end(JSON.stringify(body))
}

export async function readBody(stream: ServerHttp2Stream): Promise<Buffer> {
  const chunks: Buffer[] = []
  for await (const chunk of stream.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) chunks.push(chunk)
  return Buffer.concat(chunks)
}

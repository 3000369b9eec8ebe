import type { ServerHttp2Stream } from 'node:http2'

/** The whole request body. The stream stays open for the response. */
export async function readBody(stream: ServerHttp2Stream): Promise<Buffer> {
  const chunks: Buffer[] = []
  for await (const chunk of stream.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) chunks.push(chunk)
  return Buffer.concat(chunks)
}

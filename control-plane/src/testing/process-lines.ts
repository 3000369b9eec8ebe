/**
 * Reads a connect stream like the strictest client: every line matches its schema, `seq` has no gaps, and nothing
 * follows the end.
 */
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { request as httpRequest, type IncomingMessage } from 'node:http'
import { NdjsonDecoder, PROCESS_EVENT_MAX_BYTES, ProcessFrame } from '@warren/protocol'
import { Value } from 'typebox/value'

export type ProcessLine = Exclude<ProcessFrame, { type: 'heartbeat' }>

/** Opens a streamed response over a separate real connection. */
export async function openStream(
  port: number,
  path: string,
  headers: Record<string, string>,
): Promise<IncomingMessage> {
  const request = httpRequest({ port, path, headers, agent: false })
  request.on('error', () => {})
  request.end()
  const [response] = (await once(request, 'response')) as [IncomingMessage]
  response.on('error', () => {})
  return response
}

export async function readProcessLines(
  stream: AsyncIterable<Buffer>,
  after = 0,
): Promise<{ lines: ProcessLine[]; seq: number }> {
  const lines: ProcessLine[] = []
  const decoder = new NdjsonDecoder()
  let seq = after
  for await (const chunk of stream) {
    for (const value of decoder.push(chunk)) {
      assert.ok(Value.Check(ProcessFrame, value), JSON.stringify(value))
      assert.ok(lines.length === 0 || lines.at(-1)!.type === 'data', 'a line after the end')
      if (value.type === 'heartbeat') continue
      if (value.type === 'data') {
        if (seq !== 0) assert.equal(value.seq, seq + 1)
        seq = value.seq
        const data = Buffer.from(value.data_base64, 'base64')
        assert.ok(data.length <= PROCESS_EVENT_MAX_BYTES)
        assert.equal(data.toString('base64'), value.data_base64)
      }
      lines.push(value)
    }
  }
  return { lines, seq }
}

/** Returns the lines that a reader has received when its connection breaks after this many bytes or lines. */
export async function readUpTo(
  response: IncomingMessage,
  bytes: number,
  linesMax = Number.POSITIVE_INFINITY,
): Promise<ProcessLine[]> {
  const decoder = new NdjsonDecoder()
  const lines: ProcessLine[] = []
  let left = bytes
  for await (const chunk of response as AsyncIterable<Buffer>) {
    const part = chunk.subarray(0, left)
    left -= part.length
    for (const value of decoder.push(part))
      if ((value as ProcessFrame).type !== 'heartbeat') lines.push(value as ProcessLine)
    if (left === 0 || lines.length >= linesMax) break
  }
  response.destroy()
  return lines
}

export const outputOf = (lines: ProcessLine[], stream?: string): Buffer =>
  Buffer.concat(
    lines.flatMap((line) =>
      line.type === 'data' && (stream === undefined || line.stream === stream)
        ? [Buffer.from(line.data_base64, 'base64')]
        : [],
    ),
  )

/** The processes of one sandbox, as the stories about them use them: plain requests and connect streams. */
import assert from 'node:assert/strict'
import { type ProcessFrame, type ProcessView, readNdjson } from '@warren/protocol'
import { request, requestOk } from './sandboxes.ts'
import type { VmInstance } from './vm-instance.ts'

export type Followed = {
  /** Of the last event. */
  seq: number
  bytes: Buffer
  /** How the stream ended; undefined when we had enough, or when it was cut. */
  end: Extract<ProcessFrame, { type: 'exit' | 'error' }> | undefined
}

export function processClient(warren: VmInstance, sandboxId: string) {
  const at = (path: string) => `/sandboxes/${sandboxId}/processes${path}`
  const client = {
    /** With the status, whatever it is. */
    call: (method: string, path: string, body?: object) => request(warren, method, at(path), body),

    ask: async <Data = ProcessView>(method: string, path: string, body?: object): Promise<Data> =>
      (await requestOk(warren, method, at(path), body)) as Data,

    start: (body: object): Promise<ProcessView> => client.ask('POST', '', body),
    get: (id: string): Promise<ProcessView> => client.ask('GET', `/${id}`),
    delete: (id: string, graceMs = 1000): Promise<ProcessView> => client.ask('DELETE', `/${id}?grace_ms=${graceMs}`),

    write: (id: string, bytes: Buffer | string) =>
      client.ask<{ input_seq: number }>('POST', `/${id}/input`, {
        data_base64: Buffer.from(bytes).toString('base64'),
      }),

    connect: (id: string, after: number): Promise<Response> =>
      fetch(`${warren.instance.baseUrl}/v1${at(`/${id}/connect?after=${after}`)}`, {
        headers: { 'x-api-key': warren.instance.key },
      }),

    /** Until `enough` says so of what has come, or the end. */
    follow: async (id: string, after: number, enough: (text: string) => boolean = () => false): Promise<Followed> =>
      readOutput(await client.connect(id, after), after, enough),
  }
  return client
}

/** Of a stream that is cut in the middle it gives what has come. */
export async function readOutput(
  response: Response,
  after: number,
  enough: (text: string) => boolean = () => false,
): Promise<Followed> {
  const chunks: Buffer[] = []
  let text = ''
  let seq = after
  const events = readEvents(response, after)
  for (let next = await events.next(); ; next = await events.next()) {
    if (next.done) return { seq, bytes: Buffer.concat(chunks), end: next.value }
    seq = next.value.seq
    chunks.push(next.value.bytes)
    text += next.value.bytes.toString('latin1')
    if (!enough(text)) continue
    await events.return(undefined)
    return { seq, bytes: Buffer.concat(chunks), end: undefined }
  }
}

/** Event by event, then how it ended. Their numbers must have no gap. */
export async function* readEvents(
  response: Response,
  after: number,
): AsyncGenerator<{ seq: number; bytes: Buffer }, Followed['end']> {
  assert.equal(response.status, 200, response.ok ? '' : await response.text())
  let seq = after
  try {
    for await (const value of readNdjson(response.body!)) {
      const frame = value as ProcessFrame
      if (frame.type === 'exit' || frame.type === 'error') return frame
      if (frame.type === 'heartbeat') continue
      assert.equal(frame.type, 'data')
      if (seq !== 0) assert.equal(frame.seq, seq + 1)
      seq = frame.seq
      yield { seq, bytes: Buffer.from(frame.data_base64, 'base64') }
    }
  } catch (error) {
    // A stream that was cut is no end, and no failure of the test.
    if (error instanceof assert.AssertionError) throw error
  }
  return undefined
}

/** Lines that must be whole numbers, each one more than the one before. */
export function checkCount(text: string, first: number): number[] {
  const numbers = text.trim().split(/\r?\n/).map(Number)
  assert.deepEqual(
    numbers,
    numbers.map((_, index) => first + index),
  )
  return numbers
}

/** The processes of one sandbox, with plain requests and connect streams. */
import assert from 'node:assert/strict'
import { scaleLimit } from '@warren/kit/testing/slowness'
import { type ProcessFrame, type ProcessView, readNdjson } from '@warren/protocol'
import { request, requestOk, type Target } from './sandboxes.ts'

/** Generous: an emulated VM on a busy machine is slow. */
const FOLLOW_LIMIT_MS = 240_000

export type Followed = {
  /** Sequence number of the last event. */
  seq: number
  bytes: Buffer
  /** The last frame; undefined when the reader stopped early or the stream was aborted. */
  end: Extract<ProcessFrame, { type: 'exit' | 'error' }> | undefined
}

export function processClient(warren: Target, sandboxId: string) {
  const at = (path: string) => `/sandboxes/${sandboxId}/processes${path}`
  const client = {
    /** Returns whatever the API responds. */
    request: (method: string, path: string, body?: object) => request(warren, method, at(path), body),

    requestOk: async <Data = ProcessView>(method: string, path: string, body?: object): Promise<Data> =>
      (await requestOk(warren, method, at(path), body)) as Data,

    start: (body: object): Promise<ProcessView> => client.requestOk('POST', '', body),
    get: (id: string): Promise<ProcessView> => client.requestOk('GET', `/${id}`),
    delete: (id: string, graceMs = 1000): Promise<ProcessView> =>
      client.requestOk('DELETE', `/${id}?grace_ms=${graceMs}`),

    write: (id: string, bytes: Buffer | string) =>
      client.requestOk<{ input_seq: number }>('POST', `/${id}/input`, {
        data_base64: Buffer.from(bytes).toString('base64'),
      }),

    connect: (id: string, after: number, signal?: AbortSignal): Promise<Response> =>
      fetch(`${warren.instance.baseUrl}/v1${at(`/${id}/connect?after=${after}`)}`, {
        headers: { 'x-api-key': warren.instance.key },
        ...(signal ? { signal } : {}),
      }),

    /** Reads until `enough` returns true for the text so far, until the end, or until the time limit. */
    follow: async (id: string, after: number, enough: (text: string) => boolean = () => false): Promise<Followed> => {
      const signal = AbortSignal.timeout(scaleLimit(FOLLOW_LIMIT_MS))
      return readOutput(await client.connect(id, after, signal), after, enough)
    },
  }
  return client
}

/** Returns what was received, also from a stream that is aborted in the middle. */
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

/** Yields each event and returns the last frame. The sequence numbers must have no gap. */
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
    // The stream was aborted: there is no last frame, which is not a failure of the test.
    if (error instanceof assert.AssertionError) throw error
  }
  return undefined
}

/** Checks that each line is a number that is one more than the line before. */
export function checkCount(text: string, first: number): number[] {
  const numbers = text.trim().split(/\r?\n/).map(Number)
  assert.deepEqual(
    numbers,
    numbers.map((_, index) => first + index),
  )
  return numbers
}

/** The worker thread that parses deploy bodies, one after the other. */
import { parentPort } from 'node:worker_threads'
import { BodyFault } from './fault.ts'
import { type BodyLimits, type ParsedBody, parseBody } from './parse-body.ts'

export type WorkerInput = { bytes: Uint8Array; limits: BodyLimits }
export type WorkerAnswer = { parsed: ParsedBody } | { field: string; text: string }

parentPort!.on('message', async ({ bytes, limits }: WorkerInput) => {
  try {
    const parsed = await parseBody(bytes, limits)
    parentPort!.postMessage({ parsed } satisfies WorkerAnswer, [parsed.archive.buffer])
  } catch (error) {
    // Anything else is a bug, and ends the thread with an error that its parent sees.
    if (!(error instanceof BodyFault)) throw error
    parentPort!.postMessage({ field: error.field, text: error.message } satisfies WorkerAnswer)
  }
})

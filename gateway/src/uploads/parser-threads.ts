/**
 * Parses bodies in worker threads. A thread that has answered waits for the next body, because starting one takes longer
 * than most bodies; one that failed or was too slow is ended.
 */
import { Worker } from 'node:worker_threads'
import { badRequest } from '../http/errors.ts'
import type { BodyLimits, ParsedBody } from './parse-body.ts'
import type { WorkerAnswer, WorkerInput } from './parse-worker.ts'

/** Checking the largest body takes seconds. One that takes this long was made for that. */
const PARSE_LIMIT_MS = 60_000
const HEAP_MIB = 768
const IDLE_MAX = 2

export class ParserThreads {
  readonly #idle: Worker[] = []

  /** Throws 400 for a body that is not valid. The bytes are passed to the thread and are empty afterwards. */
  async parse(bytes: Uint8Array<ArrayBuffer>, limits: BodyLimits): Promise<ParsedBody> {
    const worker = this.#idle.pop() ?? this.#start()
    worker.ref()
    let hasAnswered = false
    try {
      const { expandedMaxBytes, fileMaxBytes, entriesMax, reservedNames } = limits
      const input = { bytes, limits: { expandedMaxBytes, fileMaxBytes, entriesMax, reservedNames } }
      const answer = await askWorker(worker, input)
      hasAnswered = true
      if ('parsed' in answer) return answer.parsed
      throw badRequest(answer.field, answer.text)
    } finally {
      if (hasAnswered && this.#idle.length < IDLE_MAX) this.#rest(worker)
      else await worker.terminate()
    }
  }

  #start(): Worker {
    const resourceLimits = { maxOldGenerationSizeMb: HEAP_MIB }
    const worker = new Worker(new URL('./parse-worker.ts', import.meta.url), { resourceLimits })
    // Without a listener, an error of an idle thread would end the process.
    worker.on('error', () => {})
    worker.on('exit', () => {
      const at = this.#idle.indexOf(worker)
      if (at >= 0) this.#idle.splice(at, 1)
    })
    return worker
  }

  #rest(worker: Worker): void {
    // An idle thread does not keep the process alive.
    worker.unref()
    this.#idle.push(worker)
  }
}

async function askWorker(worker: Worker, input: WorkerInput): Promise<WorkerAnswer> {
  const { promise, resolve, reject } = Promise.withResolvers<WorkerAnswer>()
  const timer = setTimeout(() => reject(badRequest('upload', 'takes too long to check')), PARSE_LIMIT_MS)
  const fail = (error: NodeJS.ErrnoException) =>
    reject(error.code === 'ERR_WORKER_OUT_OF_MEMORY' ? badRequest('body', 'needs too much memory to check') : error)
  const exit = (code: number) => reject(new Error(`the upload thread exited with ${code} without an answer`))
  worker.once('message', resolve).once('error', fail).once('exit', exit)
  try {
    worker.postMessage(input, [input.bytes.buffer as ArrayBuffer])
    return await promise
  } finally {
    clearTimeout(timer)
    worker.off('message', resolve).off('error', fail).off('exit', exit)
  }
}

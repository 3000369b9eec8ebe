/**
 * Examines an upload in a worker thread. Its files are not trusted: reading all of them takes a second, and some can be made to
 * take very long. Meanwhile this process answers requests, those to apps included.
 */
import { Worker } from 'node:worker_threads'
import type { Settings } from '../../uploads/settings.ts'
import { type Plan, PlanError } from '../plan.ts'
import type { Images } from './images.ts'

export type ExamineInput = {
  /** The packed upload. */
  file: string
  settings: Settings
  buildVars: Record<string, string>
  images: Images
}
export type ExamineAnswer = { plan: Plan } | { refused: string }

/** An honest upload of the largest size takes a few seconds on a busy machine; a hostile one burns a core until then. */
const LIMIT_MS = 20_000
const HEAP_MIB = 768

/** Throws a PlanError. */
export async function examineUpload(input: ExamineInput, limitMs = LIMIT_MS): Promise<Plan> {
  const worker = new Worker(new URL('./examine-worker.ts', import.meta.url), {
    workerData: input,
    resourceLimits: { maxOldGenerationSizeMb: HEAP_MIB },
  })
  const { promise, resolve, reject } = Promise.withResolvers<ExamineAnswer>()
  const timer = setTimeout(() => reject(new PlanError('the files of the project take too long to examine')), limitMs)
  worker.once('message', resolve)
  worker.once('error', (error: NodeJS.ErrnoException) => {
    const isOutOfMemory = error.code === 'ERR_WORKER_OUT_OF_MEMORY'
    reject(isOutOfMemory ? new PlanError('the files of the project need too much memory to examine') : error)
  })
  try {
    const answer = await promise
    if ('refused' in answer) throw new PlanError(answer.refused)
    return answer.plan
  } finally {
    clearTimeout(timer)
    await worker.terminate()
  }
}

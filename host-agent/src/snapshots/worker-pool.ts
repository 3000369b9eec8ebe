/**
 * Worker threads for long synchronous work: reading and writing hundreds of MiB of memory and files. In the main thread
 * it would block the requests of every other sandbox; asynchronous calls would cost a round trip per MiB.
 */
import { Worker } from 'node:worker_threads'
import type { JobName, JobReply, Jobs } from './worker.ts'

type Job = { id: number; job: JobName; options: unknown; resolve: (value: never) => void; reject: (e: Error) => void }
type Thread = { worker: Worker; slow: boolean; current?: Job }

/** Background jobs. They have a dedicated thread, because a guest may be paused while other jobs wait. */
const SLOW_JOBS: ReadonlySet<JobName> = new Set(['mergeAndVerify', 'sealBase', 'checkBase'])

export type WorkerPool = {
  run<J extends JobName>(job: J, options: Parameters<Jobs[J]>[0]): Promise<ReturnType<Jobs[J]>>
  close(): Promise<void>
}

export function startWorkerPool(count: number): WorkerPool {
  const waiting: Job[] = []
  const takeNext = (thread: Thread): Job | undefined => {
    const at = waiting.findIndex((job) => SLOW_JOBS.has(job.job) === thread.slow)
    return at < 0 ? undefined : waiting.splice(at, 1)[0]
  }
  let nextId = 1
  let closed = false
  const threads = Array.from({ length: count + 1 }, (_, i) => {
    const thread: Thread = { worker: undefined as never, slow: i === count }
    start(thread)
    return thread
  })

  function start(thread: Thread): void {
    const worker = new Worker(new URL('./worker.ts', import.meta.url))
    thread.worker = worker
    worker.unref()
    worker.on('message', (reply: JobReply) => {
      const job = thread.current
      if (job?.id !== reply.id) return
      finish(thread, () => {
        if ('error' in reply) job.reject(Object.assign(new Error(reply.error.message), { code: reply.error.code }))
        else job.resolve(reply.result as never)
      })
    })
    worker.on('error', (error) => {
      const job = thread.current
      // The thread crashed, for example out of memory. Its job fails, and a new thread takes the next one.
      if (!closed) start(thread)
      if (job) finish(thread, () => job.reject(error as Error))
    })
  }

  function finish(thread: Thread, settle: () => void): void {
    delete thread.current
    thread.worker.unref()
    settle()
    assignJobs()
  }

  function assignJobs(): void {
    for (const thread of threads) {
      if (thread.current) continue
      const job = takeNext(thread)
      if (!job) continue
      thread.current = job
      thread.worker.ref()
      thread.worker.postMessage({ id: job.id, job: job.job, options: job.options })
    }
  }

  return {
    run: (job, options) =>
      new Promise((resolve, reject) => {
        waiting.push({ id: nextId++, job, options, resolve: resolve as Job['resolve'], reject })
        assignJobs()
      }),
    async close() {
      closed = true
      await Promise.all(threads.map((thread) => thread.worker.terminate()))
    },
  }
}

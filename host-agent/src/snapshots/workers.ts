/**
 * Threads for what is synchronous and takes long: reading and writing hundreds of MiB of memory and files. In the main
 * thread it would hold up every other sandbox's requests; by asynchronous calls it would cost a trip per MiB.
 */
import { Worker } from 'node:worker_threads'
import type { JobName, JobReply, Jobs } from './worker.ts'

type Job = { id: number; job: JobName; options: unknown; resolve: (value: never) => void; reject: (e: Error) => void }
type Thread = { worker: Worker; slow: boolean; doing?: Job }

/** Nobody waits for these, and a guest may be standing still for the others: they have a thread of their own. */
const SLOW: ReadonlySet<JobName> = new Set(['mergeWhole', 'sealBase', 'checkBase'])

export type Workers = {
  run<J extends JobName>(job: J, options: Parameters<Jobs[J]>[0]): Promise<ReturnType<Jobs[J]>>
  close(): Promise<void>
}

export function startWorkers(count: number): Workers {
  const waiting: Job[] = []
  const nextFor = (thread: Thread): Job | undefined => {
    const at = waiting.findIndex((job) => SLOW.has(job.job) === thread.slow)
    return at < 0 ? undefined : waiting.splice(at, 1)[0]
  }
  let next = 1
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
      const job = thread.doing
      if (job?.id !== reply.id) return
      settle(thread, () => {
        if ('error' in reply) job.reject(Object.assign(new Error(reply.error.message), { code: reply.error.code }))
        else job.resolve(reply.result as never)
      })
    })
    worker.on('error', (error) => {
      const job = thread.doing
      // Out of memory, or a bug: the job fails, the next one gets a new thread.
      if (!closed) start(thread)
      if (job) settle(thread, () => job.reject(error as Error))
    })
  }

  function settle(thread: Thread, end: () => void): void {
    delete thread.doing
    thread.worker.unref()
    end()
    pump()
  }

  function pump(): void {
    for (const thread of threads) {
      if (thread.doing) continue
      const job = nextFor(thread)
      if (!job) continue
      thread.doing = job
      thread.worker.ref()
      thread.worker.postMessage({ id: job.id, job: job.job, options: job.options })
    }
  }

  return {
    run: (job, options) =>
      new Promise((resolve, reject) => {
        waiting.push({ id: next++, job, options, resolve: resolve as Job['resolve'], reject })
        pump()
      }),
    async close() {
      closed = true
      await Promise.all(threads.map((thread) => thread.worker.terminate()))
    },
  }
}

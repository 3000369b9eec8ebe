/**
 * Worker threads for long synchronous work: reading and writing hundreds of MiB of memory and files. In the main thread
 * it would block the requests of every other sandbox; asynchronous calls would cost a round trip per MiB.
 */
import { Worker } from 'node:worker_threads'
import { PendingCalls } from '../rpc/pending-calls.ts'
import type { RpcReply, RpcRequest } from '../rpc/protocol.ts'
import type { JobName, Jobs } from './worker.ts'

type Thread = { worker: Worker; slow: boolean; current?: RpcRequest }

/** Background jobs. They have a dedicated thread, because a guest may be paused while other jobs wait. */
const SLOW_JOBS: ReadonlySet<JobName> = new Set(['mergeAndVerify', 'sealBase', 'checkBase', 'flattenDisk'])

export type WorkerPool = {
  run<J extends JobName>(job: J, options: Parameters<Jobs[J]>[0]): Promise<ReturnType<Jobs[J]>>
  close(): Promise<void>
}

export function startWorkerPool(count: number): WorkerPool {
  const pending = new PendingCalls()
  const waiting: RpcRequest[] = []
  const takeNext = (thread: Thread): RpcRequest | undefined => {
    const at = waiting.findIndex(({ method }) => SLOW_JOBS.has(method as JobName) === thread.slow)
    return at < 0 ? undefined : waiting.splice(at, 1)[0]
  }
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
    worker.on('message', (reply: RpcReply) => finish(thread, () => pending.settle(reply)))
    worker.on('error', (error) => {
      const request = thread.current
      // The thread crashed, for example out of memory. Its job fails, and a new thread takes the next one.
      if (!closed) start(thread)
      if (request) finish(thread, () => pending.reject(request.id, error as Error))
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
      const request = takeNext(thread)
      if (!request) continue
      thread.current = request
      thread.worker.ref()
      thread.worker.postMessage(request)
    }
  }

  return {
    run(job, options) {
      const { id, reply } = pending.add()
      waiting.push({ id, method: job, params: [options] })
      assignJobs()
      return reply as Promise<never>
    },
    async close() {
      closed = true
      await Promise.all(threads.map((thread) => thread.worker.terminate()))
    },
  }
}

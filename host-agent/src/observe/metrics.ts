/** What the host agent counts and measures while it works. collect-metrics.ts adds the current values of the rest. */
import type { OnDemandProcess } from '../rpc/on-demand-process.ts'
import { Counter, Histogram } from './instruments.ts'

export type Metrics = ReturnType<typeof createMetrics>

/** From a resume on standby to the first create of a shape, which boots a base. */
const OPERATION_BOUNDS = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120]
/** From a build whose steps are all cached to the time limit. */
const BUILD_BOUNDS = [0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200]
const REQUEST_BOUNDS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 20]

export const createMetrics = () => ({
  operations: new Histogram<'operation' | 'how' | 'outcome'>(
    {
      name: 'warren_host_operation_seconds',
      help: 'Duration of create, pause, resume and fork, by how the VM was started and by outcome',
    },
    OPERATION_BOUNDS,
  ),
  poolRequests: new Counter<'result'>({
    name: 'warren_host_pool_requests_total',
    help: 'Creates that found a VMM in the warm pool (hit) and creates that did not (miss)',
  }),
  builds: new Histogram<'outcome'>(
    { name: 'warren_host_build_seconds', help: 'Duration of builds of templates, by outcome' },
    BUILD_BOUNDS,
  ),
  buildSteps: new Counter<'how'>({
    name: 'warren_host_build_steps_total',
    help: 'Steps of builds that were run, and steps that were found in the cache',
  }),
  processRequests: new Histogram<'process' | 'method' | 'outcome'>(
    {
      name: 'warren_host_process_request_seconds',
      help: 'Duration of requests to the helper processes netd and vmm_launcher',
    },
    REQUEST_BOUNDS,
  ),
  processExits: new Counter<'process'>({
    name: 'warren_host_process_exits_total',
    help: 'Unexpected exits of helper processes, each followed by a new start',
  }),
})

/** Until the process is closed. */
export function measureProcess<Calls>(metrics: Metrics, name: string, process: OnDemandProcess<Calls>): void {
  process.on('answered', ({ method, seconds, failed }) =>
    metrics.processRequests.observe({ process: name, method, outcome: failed ? 'failed' : 'ok' }, seconds),
  )
  process.on('died', () => metrics.processExits.increase({ process: name }))
}

/** Measures an operation of a sandbox. `how` is part of its response, unless it failed. */
export async function measureOperation<Response extends { how?: string }>(
  metrics: Metrics,
  operation: 'create' | 'pause' | 'resume' | 'fork' | 'resize',
  work: () => Promise<Response>,
): Promise<Response> {
  const startedAt = performance.now()
  const observe = (outcome: 'ok' | 'failed', how = '') =>
    metrics.operations.observe({ operation, how, outcome }, (performance.now() - startedAt) / 1000)
  try {
    const response = await work()
    observe('ok', response.how)
    return response
  } catch (error) {
    observe('failed')
    throw error
  }
}

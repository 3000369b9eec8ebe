import {
  Empty,
  ok,
  ProcessConnectQuery,
  ProcessCreateBody,
  ProcessDeleteQuery,
  ProcessFrame,
  ProcessInputBody,
  ProcessInputView,
  ProcessListView,
  ProcessParams,
  ProcessResizeBody,
  ProcessSignalBody,
  ProcessView,
  ProcessWaitQuery,
  SandboxParams,
  success,
} from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { LARGE_JSON_BODY_MAX_BYTES } from '../http/body.ts'
import { callerDisconnected } from '../http/caller-disconnected.ts'
import { loadOwnSandbox } from '../http/load-own-sandbox.ts'
import type { App } from '../http/server.ts'
import { connectProcess } from './connect-process.ts'
import {
  closeStdin,
  deleteProcess,
  getProcess,
  listProcesses,
  resizeProcess,
  signalProcess,
  waitProcess,
  writeInput,
} from './processes.ts'
import { startProcess } from './start-process.ts'

export function processRoutes(app: App, deps: Deps): void {
  const tags = ['processes']
  const config = { access: 'token' } as const
  const preValidation = loadOwnSandbox(deps)

  app.post(
    '/v1/sandboxes/:id/processes',
    {
      bodyLimit: LARGE_JSON_BODY_MAX_BYTES,
      config: { ...config, idempotent: true },
      preValidation,
      schema: {
        summary: 'Start a process, with pipes or with a terminal',
        tags,
        params: SandboxParams,
        body: ProcessCreateBody,
        response: { 200: success(ProcessView) },
      },
    },
    async (request, reply) => ok(await startProcess(deps, request.sandbox, request.body, callerDisconnected(reply))),
  )

  app.get(
    '/v1/sandboxes/:id/processes',
    {
      config,
      preValidation,
      schema: {
        summary: 'List processes, including recently ended ones',
        tags,
        params: SandboxParams,
        response: { 200: success(ProcessListView) },
      },
    },
    async (request) => ok(await listProcesses(deps, request.sandbox)),
  )

  app.get(
    '/v1/sandboxes/:id/processes/:process_id',
    {
      config,
      preValidation,
      schema: { summary: 'Get a process', tags, params: ProcessParams, response: { 200: success(ProcessView) } },
    },
    async (request) => ok(await getProcess(deps, request.sandbox, request.params.process_id)),
  )

  app.delete(
    '/v1/sandboxes/:id/processes/:process_id',
    {
      config,
      preValidation,
      schema: {
        summary: 'Stop a process and everything it started. Idempotent',
        tags,
        params: ProcessParams,
        querystring: ProcessDeleteQuery,
        response: { 200: success(ProcessView) },
      },
    },
    async (request) => ok(await deleteProcess(deps, request.sandbox, request.params.process_id, request.query)),
  )

  app.get(
    '/v1/sandboxes/:id/processes/:process_id/connect',
    {
      config,
      preValidation,
      // A HEAD request would read the whole output only to discard it.
      exposeHeadRoute: false,
      schema: {
        summary: 'Stream the output of a process as NDJSON, starting after any sequence number',
        tags,
        params: ProcessParams,
        querystring: ProcessConnectQuery,
        response: {
          200: {
            description: 'One JSON frame per line',
            content: { 'application/x-ndjson': { schema: ProcessFrame } },
          },
        },
      },
    },
    async (request, reply) => {
      const { sandbox, params, query } = request
      await connectProcess(deps, sandbox, params.process_id, query.after ?? 0, reply)
      return reply
    },
  )

  app.get(
    '/v1/sandboxes/:id/processes/:process_id/wait',
    {
      config,
      preValidation,
      exposeHeadRoute: false,
      schema: {
        summary: 'Wait until a process has ended. Returns 408 if it is still running after the timeout',
        tags,
        params: ProcessParams,
        querystring: ProcessWaitQuery,
        response: { 200: success(ProcessView) },
      },
    },
    async (request, reply) =>
      ok(await waitProcess(deps, request.sandbox, request.params.process_id, request.query, callerDisconnected(reply))),
  )

  app.post(
    '/v1/sandboxes/:id/processes/:process_id/input',
    {
      bodyLimit: LARGE_JSON_BODY_MAX_BYTES,
      config,
      preValidation,
      schema: {
        summary: 'Write to the stdin or terminal of a process',
        tags,
        params: ProcessParams,
        body: ProcessInputBody,
        response: { 200: success(ProcessInputView) },
      },
    },
    async (request, reply) => {
      const { sandbox, params, body } = request
      return ok(await writeInput(deps, sandbox, params.process_id, body.data_base64, callerDisconnected(reply)))
    },
  )

  app.post(
    '/v1/sandboxes/:id/processes/:process_id/stdin/close',
    {
      config,
      preValidation,
      schema: {
        summary: 'Close the stdin of a process. Not available for a process with a terminal',
        tags,
        params: ProcessParams,
        response: { 200: success(Empty) },
      },
    },
    async (request) => ok(await closeStdin(deps, request.sandbox, request.params.process_id)),
  )

  app.post(
    '/v1/sandboxes/:id/processes/:process_id/resize',
    {
      config,
      preValidation,
      schema: {
        summary: 'Resize the terminal of a process',
        tags,
        params: ProcessParams,
        body: ProcessResizeBody,
        response: { 200: success(Empty) },
      },
    },
    async (request) => ok(await resizeProcess(deps, request.sandbox, request.params.process_id, request.body)),
  )

  app.post(
    '/v1/sandboxes/:id/processes/:process_id/signal',
    {
      config,
      preValidation,
      schema: {
        summary: 'Send a signal to the process group, or to the foreground process group of its terminal',
        tags,
        params: ProcessParams,
        body: ProcessSignalBody,
        response: { 200: success(Empty) },
      },
    },
    async (request) => ok(await signalProcess(deps, request.sandbox, request.params.process_id, request.body)),
  )
}

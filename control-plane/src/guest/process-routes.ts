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
      config: { ...config, idempotent: true },
      preValidation,
      schema: {
        summary: 'Start a process, on pipes or with a terminal of its own',
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
        summary: 'List the processes, ended ones that are still on record included',
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
      schema: { summary: 'Get one process', tags, params: ProcessParams, response: { 200: success(ProcessView) } },
    },
    async (request) => ok(await getProcess(deps, request.sandbox, request.params.process_id)),
  )

  app.delete(
    '/v1/sandboxes/:id/processes/:process_id',
    {
      config,
      preValidation,
      schema: {
        summary: 'End a process and all it started; may be repeated',
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
      // It would follow the process to its end to throw everything away.
      exposeHeadRoute: false,
      schema: {
        summary: 'Follow the output of a process as NDJSON, from any number on',
        tags,
        params: ProcessParams,
        querystring: ProcessConnectQuery,
        response: {
          200: { description: 'One frame a line', content: { 'application/x-ndjson': { schema: ProcessFrame } } },
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
        summary: 'Wait for the end of a process; 408 while it goes on',
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
      config,
      preValidation,
      schema: {
        summary: 'Write to the stdin or the terminal of a process',
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
        summary: 'Close the stdin of a process on pipes',
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
        summary: 'Change the size of a terminal',
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
        summary: 'Send a signal to the group of a process, or to the one that has its terminal',
        tags,
        params: ProcessParams,
        body: ProcessSignalBody,
        response: { 200: success(Empty) },
      },
    },
    async (request) => ok(await signalProcess(deps, request.sandbox, request.params.process_id, request.body)),
  )
}

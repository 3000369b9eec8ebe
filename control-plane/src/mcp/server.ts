/**
 * MCP server without state: requests are independent, so any control plane process can serve the next one. Callers see
 * only the tools they may use. A failed tool call is returned to the model as an error result.
 */

import { errorText } from '@warren/kit/error-text'
import { Failure, Fault } from '@warren/kit/failure'
import { recordTool } from '../audit/record-tool.ts'
import type { Deps } from '../deps.ts'
import type { Caller } from '../http/caller.ts'
import { renderError } from '../http/errors.ts'
import { GUEST_TOOLS } from './guest-tools.ts'
import { SANDBOX_TOOLS } from './sandbox-tools.ts'
import type { Tool, ToolCall } from './tool.ts'

const TOOLS: readonly Tool[] = [...SANDBOX_TOOLS, ...GUEST_TOOLS]

const INSTRUCTIONS =
  'Sandboxes are isolated virtual machines, each with its own kernel, disk and network. Create one, run commands and ' +
  'processes in it, read and write its files, pause, resume or fork it, and destroy it when you are done.'

export async function serveMcp(
  deps: Deps,
  version: string,
  { caller, requestId }: { caller: Caller; requestId: string },
  request: Request,
  body: unknown,
): Promise<Response> {
  loaded ??= load()
  const { createMcpHandler, McpServer, schemas } = await loaded
  const handler = createMcpHandler(
    () => {
      const server = new McpServer({ name: 'warren', version }, { instructions: INSTRUCTIONS })
      for (const [tool, inputSchema] of schemas) {
        if (caller.kind === 'token' && tool.access !== 'token') continue
        const { name, title, description, readOnly = false, destructive = false } = tool
        const annotations = { title, readOnlyHint: readOnly, destructiveHint: destructive }
        server.registerTool(name, { title, description, inputSchema, annotations }, (input, context) =>
          runTool(
            tool,
            { deps, caller, requestId, signal: AbortSignal.any([request.signal, context.mcpReq.signal]) },
            input,
          ),
        )
      }
      return server
    },
    { onerror: (error) => deps.log.debug({ err: error }, 'MCP request failed') },
  )
  return handler.fetch(request, { parsedBody: body })
}

let loaded: ReturnType<typeof load> | undefined

/**
 * Loaded on first use, because it costs 25 MB and a quarter of a second. Schemas are compiled once, not for each
 * request.
 */
async function load() {
  const { createMcpHandler, fromJsonSchema, McpServer } = await import('@modelcontextprotocol/server')
  const schemas = new Map(TOOLS.map((tool) => [tool, fromJsonSchema(JSON.parse(JSON.stringify(tool.input)))]))
  return { createMcpHandler, McpServer, schemas }
}

async function runTool(tool: Tool, call: ToolCall, input: unknown) {
  try {
    return textOf(await recordTool(call, tool.name, input, () => tool.run(call, input)))
  } catch (error) {
    return { ...textOf(explain(call.deps, tool, error)), isError: true }
  }
}

const textOf = (value: unknown) => ({ content: [{ type: 'text' as const, text: JSON.stringify(value) }] })

/** The same error text as in the API. */
function explain(deps: Deps, tool: Tool, error: unknown): object {
  const { body, unexpected } = renderError(error)
  if (unexpected) deps.log.error({ err: error, tool: tool.name }, 'unexpected error')
  else if (!(error instanceof Failure || error instanceof Fault)) deps.log.warn({ tool: tool.name }, errorText(error))
  return body.status === 'fail' ? body.data : { message: body.message }
}

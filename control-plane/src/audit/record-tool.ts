/** Records a call of an MCP tool that changes something, like the route that does the same. */
import { newId } from '@warren/protocol'
import { renderError } from '../http/errors.ts'
import type { ToolCall } from '../mcp/tool.ts'
import { TOOL_ACTIONS } from './actions.ts'
import { runWithAuditId } from './context.ts'
import type { NewAuditEntry } from './log.ts'
import { actorOf } from './record-requests.ts'

export async function recordTool(
  call: ToolCall,
  tool: string,
  input: unknown,
  run: () => Promise<unknown>,
): Promise<unknown> {
  const action = TOOL_ACTIONS[tool]
  if (action === undefined || action === 'unrecorded') return run()
  const id = newId('auditEntry')
  const record = (result: Pick<NewAuditEntry, 'target' | 'outcome' | 'status' | 'code'>) =>
    call.deps.audit.record({
      ...actorOf(call.caller),
      ...result,
      id,
      at: call.deps.now(),
      action,
      request_id: call.requestId,
    })
  const given = (input as { sandbox_id?: string }).sandbox_id ?? null
  try {
    const result = await runWithAuditId(id, run)
    const target = given ?? (result as { id?: string }).id ?? null
    await record({ target, outcome: 'success', status: null, code: null })
    return result
  } catch (error) {
    const { status, body } = renderError(error)
    const code = body.status === 'fail' ? (body.data.code ?? null) : null
    await record({ target: given, outcome: status < 500 ? 'fail' : 'error', status, code })
    throw error
  }
}

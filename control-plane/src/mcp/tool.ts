/** A tool is an operation of the API with a description for a model: what it does, its input, and who may use it. */
import { badField, notFound } from '@warren/kit/failure'
import { type Static, type TSchema, Type } from 'typebox'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import type { Caller } from '../http/caller.ts'
import { findOwnSandbox } from '../sandboxes/queries.ts'

export type ToolCall = { deps: Deps; caller: Caller; signal: AbortSignal; requestId: string }

export type Tool<Input extends TSchema = TSchema> = {
  name: string
  title: string
  description: string
  /** Same rule as the corresponding route: `token` also allows the access token of the sandbox. */
  access: 'user' | 'token'
  /** Hints for clients that ask the user for confirmation. */
  readOnly?: boolean
  destructive?: boolean
  input: Input
  /** The result is sent as JSON. */
  run(call: ToolCall, input: Static<Input>): Promise<unknown>
}

export const defineTool = <Input extends TSchema>(tool: Tool<Input>): Tool<Input> => tool

/** Input of every tool for one sandbox. */
export const SandboxIdInput = Type.Optional(
  Type.String({
    description: 'Id of the sandbox (sb-…). Optional if you are authenticated with the access token of a sandbox.',
  }),
)

/** A sandbox of another user is not found; with an access token, every other sandbox is not found. */
export async function getSandbox({ deps, caller }: ToolCall, given: string | undefined): Promise<SandboxRow> {
  const id = given ?? (caller.kind === 'token' ? caller.sandboxId : undefined)
  if (id === undefined) throw badField({ sandbox_id: 'is required' })
  if (caller.kind === 'token' && id !== caller.sandboxId) throw notFound('sandbox')
  const sandbox = await findOwnSandbox(deps, caller.user.id, id)
  if (!sandbox) throw notFound('sandbox')
  return sandbox
}

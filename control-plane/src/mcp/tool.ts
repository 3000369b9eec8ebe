/** A tool is a verb of the API with words for a model: what it does, what it takes, who may use it. */
import { badField, notFound } from '@warren/kit/failure'
import { type Static, type TSchema, Type } from 'typebox'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import type { Caller } from '../http/caller.ts'
import { findOwnSandbox } from '../sandboxes/queries.ts'

export type ToolCall = { deps: Deps; caller: Caller; signal: AbortSignal }

export type Tool<Input extends TSchema = TSchema> = {
  name: string
  title: string
  description: string
  /** As of the route with the same verb: `token` also for a sandbox's own access token. */
  access: 'user' | 'token'
  /** Hints for whoever asks a person first. */
  reads?: boolean
  destroys?: boolean
  input: Input
  /** What it gives is shown as JSON. */
  run(call: ToolCall, input: Static<Input>): Promise<unknown>
}

export const defineTool = <Input extends TSchema>(tool: Tool<Input>): Tool<Input> => tool

/** Of every tool for one sandbox. */
export const SandboxIdInput = Type.Optional(
  Type.String({ description: 'Id of the sandbox (sb-…). May be left out with the access token of a sandbox.' }),
)

/** A foreign sandbox is an absent one, and to an access token every other is foreign. */
export async function getSandbox({ deps, caller }: ToolCall, given: string | undefined): Promise<SandboxRow> {
  const id = given ?? (caller.kind === 'token' ? caller.sandboxId : undefined)
  if (id === undefined) throw badField({ sandbox_id: 'is required' })
  if (caller.kind === 'token' && id !== caller.sandboxId) throw notFound('sandbox')
  const sandbox = await findOwnSandbox(deps, caller.user.id, id)
  if (!sandbox) throw notFound('sandbox')
  return sandbox
}

import { SandboxCreateBody, SandboxForkBody, SandboxListQuery } from '@warren/protocol'
import { Type } from 'typebox'
import type { SandboxRow } from '../db/schema.ts'
import { egressWarnings } from '../egress/warnings.ts'
import { createSandbox } from '../sandboxes/create.ts'
import { destroySandbox } from '../sandboxes/destroy.ts'
import { forkSandbox } from '../sandboxes/fork.ts'
import { pauseSandbox } from '../sandboxes/pause.ts'
import { listSandboxes } from '../sandboxes/queries.ts'
import { resumeSandbox } from '../sandboxes/resume.ts'
import { viewSandbox } from '../sandboxes/view.ts'
import { defineTool, getSandbox, SandboxIdInput, type Tool, type ToolCall } from './tool.ts'

/** Enough for most tasks, and available in every plan. */
const SHAPE_DEFAULT = 's-1vcpu-1gb'

const OneSandbox = Type.Object({ sandbox_id: SandboxIdInput })
const view = ({ deps }: ToolCall, row: SandboxRow) => viewSandbox(row, deps.ingressAddress.urlDomain)

const viewNew = (call: ToolCall, row: SandboxRow) => ({
  ...view(call, row),
  ...egressWarnings(call.deps, row.egress),
})

const { shape, ...createFields } = SandboxCreateBody.properties

export const SANDBOX_TOOLS: readonly Tool[] = [
  defineTool({
    name: 'create_sandbox',
    title: 'Create a sandbox',
    description:
      'Creates a sandbox (a virtual machine) and returns when it is running. Destroy it when you no longer need it.',
    access: 'user',
    input: Type.Object({
      ...createFields,
      shape: Type.Optional(Type.String({ ...shape, description: `Size of the sandbox. Default: ${SHAPE_DEFAULT}.` })),
    }),
    async run(call, input) {
      const body = { ...input, shape: input.shape || SHAPE_DEFAULT }
      const row = await createSandbox(call.deps, call.caller.user, body, { signal: call.signal })
      // The caller disconnected and would never learn the id.
      if (call.signal.aborted) await destroySandbox(call.deps, row.id)
      return viewNew(call, row)
    },
  }),
  defineTool({
    name: 'list_sandboxes',
    title: 'List sandboxes',
    description: 'Lists your sandboxes, newest first. Includes destroyed and failed ones unless a status is given.',
    access: 'user',
    readOnly: true,
    input: SandboxListQuery,
    async run(call, input) {
      const { rows, total } = await listSandboxes(call.deps, call.caller.user.id, input)
      return { sandboxes: rows.map((row) => view(call, row)), total }
    },
  }),
  defineTool({
    name: 'get_sandbox',
    title: 'Get a sandbox',
    description:
      'Returns a sandbox with its current status. After pause, resume or fork, call it again until the status is reached.',
    access: 'token',
    readOnly: true,
    input: OneSandbox,
    run: async (call, input) => view(call, await getSandbox(call, input.sandbox_id)),
  }),
  defineTool({
    name: 'pause_sandbox',
    title: 'Pause a sandbox',
    description:
      'Saves memory, disk and processes and stops the machine. Returns immediately; get_sandbox shows `paused` when done.',
    access: 'token',
    input: OneSandbox,
    async run(call, input) {
      const { id } = await getSandbox(call, input.sandbox_id)
      return view(call, await pauseSandbox(call.deps, id))
    },
  }),
  defineTool({
    name: 'resume_sandbox',
    title: 'Resume a sandbox',
    description:
      'Resumes a paused sandbox where it stopped. Returns immediately; get_sandbox shows `running` when done.',
    access: 'token',
    input: OneSandbox,
    async run(call, input) {
      const sandbox = await getSandbox(call, input.sandbox_id)
      return view(call, await resumeSandbox(call.deps, sandbox))
    },
  }),
  defineTool({
    name: 'fork_sandbox',
    title: 'Fork a sandbox',
    description: 'Creates new sandboxes from the saved state of a paused one, which is left unchanged.',
    access: 'user',
    input: Type.Object({ sandbox_id: SandboxIdInput, ...SandboxForkBody.properties }),
    async run(call, { sandbox_id, ...body }) {
      const children = await forkSandbox(call.deps, await getSandbox(call, sandbox_id), body)
      return { sandboxes: children.map((row) => viewNew(call, row)) }
    },
  }),
  defineTool({
    name: 'destroy_sandbox',
    title: 'Destroy a sandbox',
    description: 'Destroys a sandbox and all its data permanently.',
    access: 'token',
    destructive: true,
    input: OneSandbox,
    async run(call, input) {
      const { id } = await getSandbox(call, input.sandbox_id)
      return destroySandbox(call.deps, id)
    },
  }),
]

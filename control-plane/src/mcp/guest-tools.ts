import { badField } from '@warren/kit/failure'
import { decodeBase64, ExecBody, ProcessCreateBody, ProcessDeleteQuery } from '@warren/protocol'
import { Type } from 'typebox'
import { execBuffered } from '../guest/exec-buffered.ts'
import { getFile } from '../guest/get-file.ts'
import { deleteProcess, writeInput } from '../guest/processes.ts'
import { putFile } from '../guest/put-file.ts'
import { startProcess } from '../guest/start-process.ts'
import { followProcess } from './follow-process.ts'
import { defineTool, getSandbox, SandboxIdInput, type Tool } from './tool.ts'

/** More than a model should read at once. */
const READ_MAX_BYTES = 1024 * 1024

const sandbox_id = SandboxIdInput
const process_id = Type.String({ description: 'Id of the process (proc_…).' })
const path = Type.String({ description: 'Absolute path in the sandbox.' })
const { stream: _, ...execFields } = ExecBody.properties

export const GUEST_TOOLS: readonly Tool[] = [
  defineTool({
    name: 'exec',
    title: 'Run a command',
    description:
      'Runs a command until it exits and returns stdout, stderr and exit code. The command is not parsed by a shell: for ' +
      'pipes, globs or variables use cmd "sh" with args ["-lc", "…"]. Use start_process for long-running programs.',
    access: 'token',
    input: Type.Object({ sandbox_id, ...execFields }),
    async run(call, { sandbox_id: id, ...body }) {
      const { result } = await execBuffered(call.deps, await getSandbox(call, id), body, call.signal)
      return result
    },
  }),
  defineTool({
    name: 'read_file',
    title: 'Read a file',
    description: 'Returns the first 1 MiB of a file, as text if it is valid UTF-8 and as base64 otherwise.',
    access: 'token',
    readOnly: true,
    input: Type.Object({ sandbox_id, path }),
    async run(call, input) {
      const done = new AbortController()
      const signal = AbortSignal.any([call.signal, done.signal])
      const { content } = await getFile(call.deps, await getSandbox(call, input.sandbox_id), input.path, signal)
      try {
        return await readSome(content)
      } finally {
        done.abort()
      }
    },
  }),
  defineTool({
    name: 'write_file',
    title: 'Write a file',
    description: 'Creates or replaces a file. Missing directories are created.',
    access: 'token',
    destructive: true,
    input: Type.Object({
      sandbox_id,
      path,
      content: Type.String(),
      encoding: Type.Optional(Type.Enum(['utf8', 'base64'], { description: 'Encoding of content. Default: utf8.' })),
    }),
    async run(call, input) {
      const bytes = input.encoding === 'base64' ? decodeBase64(input.content) : Buffer.from(input.content, 'utf8')
      if (!bytes) throw badField({ content: 'is not base64' })
      const sandbox = await getSandbox(call, input.sandbox_id)
      await putFile(call.deps, sandbox, input.path, { bytes: chunksOf(bytes), announced: bytes.length }, call.signal)
      return { bytes: bytes.length }
    },
  }),
  defineTool({
    name: 'start_process',
    title: 'Start a process',
    description:
      'Starts a program in the background, with pipes or with a terminal (pty). Read its output with follow_process.',
    access: 'token',
    input: Type.Object({ sandbox_id, ...ProcessCreateBody.properties }),
    async run(call, { sandbox_id: id, ...body }) {
      return startProcess(call.deps, await getSandbox(call, id), body, call.signal)
    },
  }),
  defineTool({
    name: 'follow_process',
    title: 'Read the output of a process',
    description:
      'Returns output after sequence number `after`, waiting up to `wait_ms` if there is none yet. To read on, call it ' +
      'again with `after` set to the returned `seq`. When `ended` is true, there is no more output.',
    access: 'token',
    readOnly: true,
    input: Type.Object({
      sandbox_id,
      process_id,
      after: Type.Optional(
        Type.Integer({
          minimum: 0,
          description:
            'Sequence number of the last output already read. Default: 0, which returns all retained output.',
        }),
      ),
      wait_ms: Type.Optional(
        Type.Integer({
          minimum: 0,
          maximum: 30_000,
          description: 'How long to wait for output, in milliseconds. Default: 5000.',
        }),
      ),
    }),
    async run(call, { sandbox_id: id, process_id: process, after = 0, wait_ms = 5_000 }) {
      return followProcess(call.deps, await getSandbox(call, id), process, { after, waitMs: wait_ms }, call.signal)
    },
  }),
  defineTool({
    name: 'send_input',
    title: 'Write to a process',
    description: 'Writes text to the stdin or terminal of a process. Include a newline to submit a line.',
    access: 'token',
    input: Type.Object({ sandbox_id, process_id, text: Type.String() }),
    async run(call, { sandbox_id: id, process_id: process, text }) {
      const data = Buffer.from(text, 'utf8').toString('base64')
      return writeInput(call.deps, await getSandbox(call, id), process, data, call.signal)
    },
  }),
  defineTool({
    name: 'stop_process',
    title: 'Stop a process',
    description: 'Stops a process and everything it started: SIGTERM first, then SIGKILL after grace_ms.',
    access: 'token',
    destructive: true,
    input: Type.Object({ sandbox_id, process_id, ...ProcessDeleteQuery.properties }),
    async run(call, { sandbox_id: id, process_id: process, ...query }) {
      return deleteProcess(call.deps, await getSandbox(call, id), process, query)
    },
  }),
]

async function readSome(content: AsyncIterable<Buffer>) {
  const chunks: Buffer[] = []
  let bytes = 0
  for await (const chunk of content) {
    chunks.push(chunk)
    bytes += chunk.length
    if (bytes > READ_MAX_BYTES) break
  }
  const all = Buffer.concat(chunks).subarray(0, READ_MAX_BYTES)
  const notice = bytes > READ_MAX_BYTES ? { truncated: true } : {}
  const text = decodeText(all, bytes > READ_MAX_BYTES)
  return text === undefined
    ? { encoding: 'base64', content: all.toString('base64'), ...notice }
    : { encoding: 'utf8', content: text, ...notice }
}

/** Undefined if it is not text; a character split by the limit is omitted. */
function decodeText(bytes: Buffer, truncated: boolean): string | undefined {
  try {
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes, { stream: truncated })
  } catch {
    return undefined
  }
}

async function* chunksOf(bytes: Uint8Array): AsyncGenerator<Buffer> {
  for (let from = 0; from < bytes.length; from += 64 * 1024) yield Buffer.from(bytes.subarray(from, from + 64 * 1024))
}

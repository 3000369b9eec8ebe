/**
 * Runs a command and returns its complete output. The first MiB of each stream is returned; the command always runs to
 * its end.
 */
import { EXEC_OUTPUT_MAX_BYTES, EXEC_TRUNCATED_NOTICE, type ExecBody, type ExecResult } from '@warren/protocol'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { ensureRunning } from './ensure-running.ts'
import { checkCommand, limitNotice, runCommand } from './exec.ts'
import { withGuest } from './with-guest.ts'

export async function execBuffered(
  deps: Deps,
  sandbox: SandboxRow,
  body: ExecBody,
  signal: AbortSignal,
): Promise<ExecResult> {
  checkCommand(sandbox, body)
  const running = await ensureRunning(deps, sandbox, signal)
  const startedAt = performance.now()
  return withGuest(
    deps,
    running,
    async () => {
      const stdout = new CappedText()
      const stderr = new CappedText()
      for await (const event of runCommand(deps, running, body, signal)) {
        if (event.type === 'stdout') stdout.push(event.bytes)
        else if (event.type === 'stderr') stderr.push(event.bytes)
        else if (event.type !== 'started') {
          if (event.type === 'exit' && event.timedOut) stderr.addLine(limitNotice(deps))
          return {
            result: {
              stdout: stdout.end(),
              stderr: stderr.end(),
              exit_code: event.exitCode,
              ...(event.type === 'error' ? { error: event.message } : {}),
            },
            exec_ms: Math.round((performance.now() - startedAt) * 100) / 100,
          }
        }
      }
      throw new Error('guest stream closed before an exit event')
    },
    signal,
  )
}

/** Collects output as text, up to the limit; nothing beyond it is held in memory. */
class CappedText {
  // A byte order mark is part of the output.
  readonly #decoder = new TextDecoder('utf-8', { ignoreBOM: true })
  #text = ''
  #bytes = 0
  #truncated = false
  #lines: string[] = []

  push(bytes: Uint8Array): void {
    if (this.#truncated) return
    const accepted = bytes.subarray(0, EXEC_OUTPUT_MAX_BYTES - this.#bytes)
    this.#bytes += accepted.length
    // A character that the limit splits stays in the decoder and is discarded.
    this.#text += this.#decoder.decode(accepted, { stream: true })
    if (accepted.length === bytes.length) return
    this.#truncated = true
    this.addLine(EXEC_TRUNCATED_NOTICE)
  }

  /** Adds a notice after the output, on a separate line. */
  addLine(line: string): void {
    this.#lines.push(`${line}\n`)
  }

  end(): string {
    const text = this.#truncated ? this.#text : this.#text + this.#decoder.decode()
    if (this.#lines.length === 0) return text
    return text + (text === '' || text.endsWith('\n') ? '' : '\n') + this.#lines.join('')
  }
}

/** A flow that a guest keeps open (held-flow-program.ts), observed from the test. */
import { type ChildProcess, spawn } from 'node:child_process'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import type { Guest } from './guest.ts'

export class HeldFlow {
  readonly #child: ChildProcess
  /** How often data was received. */
  count = 0
  closed = false

  constructor(guest: Guest, flow: { tcp?: string; udp?: string; port: number; send: string }) {
    const program = [process.execPath, join(import.meta.dirname, 'held-flow-program.ts'), JSON.stringify(flow)]
    this.#child = spawn('nsenter', ['-t', `${guest.pid}`, '-n', ...program], { stdio: ['ignore', 'pipe', 'inherit'] })
    createInterface(this.#child.stdout!).on('line', (line) => {
      if (line === 'closed') this.closed = true
      else this.count++
    })
  }

  stop(): void {
    this.#child.kill('SIGKILL')
  }
}

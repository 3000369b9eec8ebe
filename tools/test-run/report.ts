/** What a run prints after its tests: why files failed, what was skipped and why, and the slowest files. */
import path from 'node:path'
import type { TestEvent } from 'node:test/reporters'
import { readWarnings } from '@warren/kit/testing/warnings'
import { isAllowed, type Skip } from './allowed-skips.ts'

const SLOWEST_SHOWN = 10
/** Of each file that failed outside of its tests. */
const OUTPUT_LINES_SHOWN = 60
/** Of the Warrens of each file in which a test failed. */
const WARNINGS_SHOWN = 30

export class RunReport {
  readonly skips: Skip[] = []
  failures = 0
  readonly #root: string
  readonly #warningsFolder: string
  readonly #files: { file: string; seconds: number }[] = []
  readonly #stderr = new Map<string, string>()
  readonly #failedFiles: string[] = []
  readonly #filesWithFailures = new Set<string>()

  constructor(root: string, warningsFolder: string) {
    this.#root = root
    this.#warningsFolder = warningsFolder
  }

  add(event: TestEvent): void {
    if (event.type === 'test:fail' && event.data.todo === undefined) {
      this.failures++
      if (event.data.file !== undefined) this.#filesWithFailures.add(event.data.file)
      // A file is reported as a test whose name is its path: here it failed before, between or after its tests.
      if (path.isAbsolute(event.data.name)) this.#failedFiles.push(event.data.name)
    }
    if (event.type === 'test:stderr') {
      const { file, message } = event.data
      const lines = `${this.#stderr.get(file) ?? ''}${message}`.split('\n')
      this.#stderr.set(file, lines.slice(-OUTPUT_LINES_SHOWN).join('\n'))
    }
    if (event.type === 'test:pass' && event.data.skip !== undefined) {
      const { name, skip, file = '' } = event.data
      this.skips.push({
        file: this.#relative(file),
        test: name,
        reason: skip === true ? 'no reason given' : String(skip),
      })
    }
    if (event.type === 'test:complete' && path.isAbsolute(event.data.name)) {
      this.#files.push({ file: this.#relative(event.data.name), seconds: event.data.details.duration_ms / 1000 })
    }
  }

  forbiddenSkips(): Skip[] {
    return this.skips.filter((skip) => !isAllowed(skip))
  }

  render(): string {
    const slowest = this.#files.toSorted((a, b) => b.seconds - a.seconds).slice(0, SLOWEST_SHOWN)
    return [
      ...this.#failedFiles.map(
        (file) =>
          `\n${this.#relative(file)} failed outside of its tests:\n${this.#stderr.get(file) ?? 'it printed nothing'}`,
      ),
      ...[...this.#filesWithFailures].flatMap((file) => this.#renderWarnings(file)),
      '',
      `slowest files, of ${this.#files.length}:`,
      ...slowest.map(({ file, seconds }) => `${seconds.toFixed(1).padStart(8)} s  ${file}`),
      '',
      this.skips.length === 0 ? 'nothing was skipped' : `skipped: ${this.skips.length}`,
      ...this.skips.map(
        (skip) => `  ${isAllowed(skip) ? 'allowed' : 'MISSING'}  ${skip.file}: ${skip.test}: ${skip.reason}`,
      ),
      '',
    ].join('\n')
  }

  #renderWarnings(file: string): string[] {
    const warnings = readWarnings(this.#warningsFolder, file, WARNINGS_SHOWN)
    return warnings.length === 0 ? [] : ['', `${this.#relative(file)}: what its Warrens logged last:`, ...warnings]
  }

  #relative(file: string): string {
    return path.relative(this.#root, file)
  }
}

/** The doctor's outcomes as text: one aligned line a check, what to do about it under it, a summary last. */
import type { CheckOutcome } from './check.ts'

const STATUS_WIDTH = 'missing'.length
const INDENT = ' '.repeat(STATUS_WIDTH + 1)

const COLOURS = { green: 32, yellow: 33, red: 31, dim: 2 } as const
type Paint = (colour: keyof typeof COLOURS, text: string) => string

export function renderOutcomes(outcomes: readonly CheckOutcome[], { colour }: { colour: boolean }): string {
  const paint: Paint = (name, text) => (colour ? `\x1b[${COLOURS[name]}m${text}\x1b[0m` : text)
  const nameWidth = Math.max(0, ...outcomes.map((outcome) => outcome.name.length))
  const lines = outcomes.flatMap((outcome) => renderOutcome(outcome, nameWidth, paint))
  return `${[...lines, '', renderSummary(outcomes, paint)].join('\n')}\n`
}

function renderOutcome(outcome: CheckOutcome, nameWidth: number, paint: Paint): string[] {
  const name = outcome.name.padEnd(nameWidth)
  const detail = oneLine(outcome.detail)
  if (outcome.ok) {
    const line = `${paint('green', 'ok'.padEnd(STATUS_WIDTH))} ${name}  ${detail}`
    return outcome.note === undefined ? [line] : [line, paint('yellow', `${INDENT}note: ${oneLine(outcome.note)}`)]
  }
  const status = paint(outcome.needed === 'required' ? 'red' : 'yellow', 'missing')
  const recommended = outcome.needed === 'recommended' ? paint('dim', ' (recommended)') : ''
  return [`${status} ${name}  ${detail}${recommended}`, `${INDENT}fix: ${oneLine(outcome.fix)}`]
}

function renderSummary(outcomes: readonly CheckOutcome[], paint: Paint): string {
  const missing = outcomes.filter((outcome) => !outcome.ok)
  const required = missing.filter((outcome) => outcome.needed === 'required').length
  const counts = `${outcomes.length - missing.length} of ${outcomes.length} checks ok`
  if (missing.length === 0) return paint('green', `${counts}.`)
  const both = `${counts}, ${required} required and ${missing.length - required} recommended missing`
  if (required === 0) return paint('yellow', `${both}: Warren can start.`)
  return paint('red', `${both}: Warren cannot start before the required ones are mended.`)
}

/** What a tool printed may span lines or carry control characters; a line of the doctor does not. */
const oneLine = (text: string): string => text.replace(/[\s\p{Cc}]+/gu, ' ').trim()

/** True when nothing that Warren cannot start without is missing. */
export const canStart = (outcomes: readonly CheckOutcome[]): boolean =>
  outcomes.every((outcome) => outcome.ok || outcome.needed === 'recommended')

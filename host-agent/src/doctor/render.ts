/** Prints the outcomes of the checks: one aligned line each, with its note or fix, and a summary. */
import { renderLines } from '@warren/kit/table'
import { oneLine } from '../cli.ts'
import type { CheckOutcome } from './check.ts'

/** Output of another program may be a stack trace. Its first words say what is wrong; --json has all of it. */
const DETAIL_MAX_CHARACTERS = 120

const COLOURS = { green: 32, yellow: 33, red: 31 } as const
type Paint = (colour: keyof typeof COLOURS, text: string) => string

export function renderOutcomes(outcomes: readonly CheckOutcome[], { colour }: { colour: boolean }): string {
  const paint: Paint = (name, text) => (colour ? `\x1b[${COLOURS[name]}m${text}\x1b[0m` : text)
  const lines = renderLines(outcomes.map(renderCells)).map((line, index) => {
    const outcome = outcomes[index]!
    // Painted after the columns are aligned: escape sequences have a length but no width.
    return line.replace(/^\S+/, (status) => paint(colourOf(outcome), status)) + renderAdvice(outcome, paint)
  })
  return `${[...lines, '', renderSummary(outcomes, paint)].join('\n')}\n`
}

/** True unless a required check failed. */
export const canStart = (outcomes: readonly CheckOutcome[]): boolean =>
  outcomes.every((outcome) => outcome.ok || outcome.needed === 'recommended')

function renderCells(outcome: CheckOutcome): string[] {
  const recommended = !outcome.ok && outcome.needed === 'recommended' ? ' (recommended)' : ''
  return [outcome.ok ? 'ok' : 'missing', outcome.name, `${shorten(oneLine(outcome.detail))}${recommended}`]
}

const shorten = (text: string): string =>
  text.length <= DETAIL_MAX_CHARACTERS ? text : `${text.slice(0, DETAIL_MAX_CHARACTERS).trimEnd()} …`

function colourOf(outcome: CheckOutcome): keyof typeof COLOURS {
  if (outcome.ok) return 'green'
  return outcome.needed === 'required' ? 'red' : 'yellow'
}

function renderAdvice(outcome: CheckOutcome, paint: Paint): string {
  if (!outcome.ok) return `; fix: ${oneLine(outcome.fix)}`
  return outcome.note === undefined ? '' : paint('yellow', `; note: ${oneLine(outcome.note)}`)
}

function renderSummary(outcomes: readonly CheckOutcome[], paint: Paint): string {
  const missing = outcomes.filter((outcome) => !outcome.ok)
  const required = missing.filter((outcome) => outcome.needed === 'required').length
  const counts = `${outcomes.length - missing.length} of ${outcomes.length} checks ok`
  if (missing.length === 0) return paint('green', `${counts}.`)
  const both = `${counts}, ${required} required and ${missing.length - required} recommended missing`
  if (required === 0) return paint('yellow', `${both}: Warren can start.`)
  return paint('red', `${both}: Warren cannot start until the required ones are fixed.`)
}

/** The instruction that a misspelled one probably was. */

const NAMES = [
  ...['FROM', 'RUN', 'ENV', 'ARG', 'USER', 'WORKDIR', 'SHELL', 'COPY', 'ADD', 'CMD', 'ENTRYPOINT', 'EXPOSE', 'LABEL'],
  ...['VOLUME', 'HEALTHCHECK', 'STOPSIGNAL', 'ONBUILD', 'MAINTAINER'],
]

const CONTINUATION_HINT = 'check whether the line before it lacks a \\ at its end'

export function suggestInstruction(written: string): string {
  const near = NAMES.find((name) => distance(written.slice(0, 20), name) <= (name.length > 4 ? 2 : 1))
  return near === undefined ? CONTINUATION_HINT : `did you mean ${near}?`
}

/** Number of letters to insert, remove or replace (Levenshtein). */
function distance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, i) => i)
  for (let i = 1; i <= a.length; i++) {
    const next = [i]
    for (let j = 1; j <= b.length; j++) {
      const replaced = row[j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1)
      next.push(Math.min(replaced, row[j]! + 1, next[j - 1]! + 1))
    }
    row = next
  }
  return row[b.length]!
}

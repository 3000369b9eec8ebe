/** The exec form of an instruction: a JSON array of strings. */
import { Problem } from './errors.ts'

/**
 * Undefined if the text is no JSON array. It is then meant for a shell, even if it begins with a bracket: `[ -e x ]` is a
 * valid command. An array with anything but strings in it is a Problem, because no shell would understand it.
 */
export function parseStringArray(text: string): string[] | undefined {
  if (!text.trimStart().startsWith('[')) return undefined
  const value = parseJson(text)
  if (!Array.isArray(value)) return undefined
  if (!value.every((item) => typeof item === 'string')) {
    throw new Problem('the array may contain only strings; put numbers and other values in double quotes')
  }
  return value
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    // Not JSON, so it is the shell form.
    return undefined
  }
}

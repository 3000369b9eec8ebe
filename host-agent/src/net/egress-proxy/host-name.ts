/** Host names from untrusted input, in the form that rules are compared with. */

const NAME_MAX = 253
const LABEL = /^[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?$/

/**
 * In lower case and without the last dot. Undefined for text that no rule can name, an IP address included. International
 * names are in their xn-- form, as in rules.
 */
export function normaliseHostName(text: string): string | undefined {
  const name = text.toLowerCase().replace(/\.$/, '')
  const labels = name.split('.')
  if (name.length > NAME_MAX || !labels.every((label) => LABEL.test(label))) return undefined
  return /^(\d+|0x[0-9a-f]*)$/.test(labels.at(-1)!) ? undefined : name // `split` returns at least one label.
}

/** A host name as somebody untrusted wrote it, in the one form that rules are compared with. */

const NAME_MAX = 253
const LABEL = /^[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?$/

/**
 * In lower case, without the last dot. undefined: no name that could be meant by a rule. International names have
 * their xn-- form here, as in rules; an address is no name.
 */
export function normaliseHostName(text: string): string | undefined {
  const name = text.toLowerCase().replace(/\.$/, '')
  const labels = name.split('.')
  if (name.length > NAME_MAX || !labels.every((label) => LABEL.test(label))) return undefined
  return /^(\d+|0x[0-9a-f]*)$/.test(labels.at(-1)!) ? undefined : name // split gives at least one
}

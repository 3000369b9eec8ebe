/** An error and its causes on one line, for people. */
export function errorText(error: unknown): string {
  const texts: string[] = []
  for (let at: unknown = error; at !== undefined && at !== null && texts.length < 5; ) {
    texts.push(at instanceof Error ? at.message || at.name : String(at))
    at = at instanceof Error ? at.cause : undefined
  }
  return texts.filter((text, index) => texts.indexOf(text) === index).join(': ')
}

/** An error and its causes on one line, as text for people. */
export function errorText(error: unknown): string {
  const texts: string[] = []
  for (let at: unknown = error; at !== undefined && at !== null && texts.length < 5; ) {
    const text = at instanceof Error ? at.message || at.name : String(at)
    // A wrapping error often repeats the message of its cause.
    if (!texts.some((earlier) => earlier.includes(text))) texts.push(text)
    at = at instanceof Error ? at.cause : undefined
  }
  return texts.join(': ')
}

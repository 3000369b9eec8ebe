/** An error and its causes on one line, for people. */
export function errorText(error: unknown): string {
  const texts: string[] = []
  for (let at: unknown = error; at !== undefined && at !== null && texts.length < 5; ) {
    const text = at instanceof Error ? at.message || at.name : String(at)
    // Whoever wraps an error often repeats it.
    if (!texts.some((said) => said.includes(text))) texts.push(text)
    at = at instanceof Error ? at.cause : undefined
  }
  return texts.join(': ')
}

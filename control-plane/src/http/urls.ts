/** Lenient parsing of request URLs. */

/** `+` is a space, an empty value counts as absent, and of several values the first is used. */
export function parseQuery(text: string): Record<string, string> {
  const query: Record<string, string> = Object.create(null)
  if (text === '') return query
  for (const [name, value] of new URLSearchParams(text)) {
    if (value !== '' && !(name in query)) query[name] = value
  }
  return query
}

/** Removes the path prefix of the base URL, which a reverse proxy may pass on unchanged. */
export function stripPrefix(url: string, baseUrl: string | undefined): string {
  const prefix = baseUrl === undefined ? '' : new URL(baseUrl).pathname.replace(/\/$/, '')
  if (prefix === '' || !url.startsWith(prefix)) return url
  const rest = url.slice(prefix.length)
  if (rest === '') return '/'
  return /^[/?]/.test(rest) ? rest.replace(/^\?/, '/?') : url
}

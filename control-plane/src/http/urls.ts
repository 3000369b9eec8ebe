/** URLs as sloppy clients send them. */

/** `+` is a space, an empty value is the same as none, and of several the first counts (wire 1.1). */
export function parseQuery(text: string): Record<string, string> {
  const query: Record<string, string> = Object.create(null)
  if (text === '') return query
  for (const [name, value] of new URLSearchParams(text)) {
    if (value !== '' && !(name in query)) query[name] = value
  }
  return query
}

/** A proxy may hand the public path on as it is: the prefix of the base URL is not part of ours. */
export function stripPrefix(url: string, baseUrl: string | undefined): string {
  const prefix = baseUrl === undefined ? '' : new URL(baseUrl).pathname.replace(/\/$/, '')
  if (prefix === '' || !url.startsWith(prefix)) return url
  const rest = url.slice(prefix.length)
  if (rest === '') return '/'
  return /^[/?]/.test(rest) ? rest.replace(/^\?/, '/?') : url
}

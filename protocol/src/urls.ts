/** An error text, or undefined for a full http or https URL. Credentials have their own fields, so none in the URL. */
export function checkHttpUrl(text: string): string | undefined {
  const url = URL.parse(text)
  // The parser mends `http:host`; a person who writes that meant something else.
  if (!url || !/^https?:\/\//i.test(text)) return 'must be a full http:// or https:// URL'
  if (url.username || url.password) return 'must not contain credentials'
  return undefined
}

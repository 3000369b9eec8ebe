/** An error text, or undefined for a full http or https URL. Credentials are refused because they have their own fields. */
export function checkHttpUrl(text: string): string | undefined {
  const url = URL.parse(text)
  // The parser accepts `http:host`, which is most likely a typing error.
  if (!url || !/^https?:\/\//i.test(text)) return 'must be a full http:// or https:// URL'
  if (url.username || url.password) return 'must not contain credentials'
  return undefined
}

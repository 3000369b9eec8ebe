/** Parses host names of the form `<ulid>-<port>.<domain>`, in any case, with an optional port and trailing dot. */

export type Target = { id: string; port: number }

export function parseHostname(host: string | undefined, domain: string): Target | undefined {
  const name = (host ?? '').replace(/:\d+$/, '').replace(/\.$/, '').toLowerCase()
  if (!name.endsWith(`.${domain}`)) return undefined
  const [, ulid, digits] = /^([0-9a-hjkmnp-tv-z]{26})-([1-9]\d{0,4})$/.exec(name.slice(0, -domain.length - 1)) ?? []
  if (ulid === undefined || Number(digits) > 65_535) return undefined
  return { id: `sb-${ulid.toUpperCase()}`, port: Number(digits) }
}

/** Percent-encoding as AWS signatures define it: UTF-8, upper case, everything except `A-Z a-z 0-9 - . _ ~`. */

/** Throws a URIError for a lone surrogate, which has no form in UTF-8. */
export const encodeS3 = (text: string): string =>
  encodeURIComponent(text).replace(/[!'()*]/g, (char) => `%${char.charCodeAt(0).toString(16).toUpperCase()}`)

/** A key in a path or a copy source: slashes remain. Nothing is normalised, because `a//b` and `a/./b` are keys as well. */
export const encodeS3Key = (key: string): string => encodeS3(key).replaceAll('%2F', '/')

/** Undefined if the text is not percent-encoded UTF-8. A plus sign is a plus sign. */
export function decodeS3(text: string): string | undefined {
  try {
    return decodeURIComponent(text)
  } catch {
    return undefined
  }
}

export type S3Query = Readonly<Record<string, string>>

/** In the order that a signature requires: by the encoded name. `{ uploads: '' }` becomes `uploads=`. */
export const renderS3Query = (query: S3Query): string =>
  Object.entries(query)
    .map(([name, value]) => [encodeS3(name), encodeS3(value)] as const)
    .sort(([one], [other]) => (one < other ? -1 : 1))
    .map(([name, value]) => `${name}=${value}`)
    .join('&')

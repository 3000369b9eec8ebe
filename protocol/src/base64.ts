/** Standard base64 with padding. It does not use Node's Buffer because this package also runs in browsers. */

/** The bytes, or undefined if the text is not base64. White space and missing padding are accepted. */
export function decodeBase64(text: string): Uint8Array<ArrayBuffer> | undefined {
  try {
    return Uint8Array.from(atob(text), (char) => char.charCodeAt(0))
  } catch {
    // The only error of atob is invalid input; the caller has the better message for it.
    return undefined
  }
}

/** Arguments of a call are on the stack, so long input is passed to fromCharCode in chunks. */
const CHUNK_BYTES = 8 * 1024

export function encodeBase64(bytes: Uint8Array): string {
  let binary = ''
  for (let from = 0; from < bytes.length; from += CHUNK_BYTES) {
    binary += String.fromCharCode(...bytes.subarray(from, from + CHUNK_BYTES))
  }
  return btoa(binary)
}

/** Standard base64 with padding, without Node's Buffer: these words also run in a browser. */

/** The bytes, or undefined if the text is not base64. White space and missing padding are forgiven. */
export function decodeBase64(text: string): Uint8Array<ArrayBuffer> | undefined {
  try {
    return Uint8Array.from(atob(text), (char) => char.charCodeAt(0))
  } catch {
    // atob throws for one reason only, and the caller knows better what to say.
    return undefined
  }
}

/** Arguments of one call live on the stack, so long data goes through fromCharCode in pieces. */
const PIECE_BYTES = 8 * 1024

export function encodeBase64(bytes: Uint8Array): string {
  let binary = ''
  for (let from = 0; from < bytes.length; from += PIECE_BYTES) {
    binary += String.fromCharCode(...bytes.subarray(from, from + PIECE_BYTES))
  }
  return btoa(binary)
}

import { truncateMountError } from '@warren/protocol'

/**
 * What a guest says about a mount, for its owner: short, and without control characters and halves of characters, which the
 * database cannot store in JSON.
 */
export const cleanGuestText = (text: string): string =>
  truncateMountError(
    text
      .toWellFormed()
      .replace(/\p{Cc}+/gu, ' ')
      .trim(),
  )

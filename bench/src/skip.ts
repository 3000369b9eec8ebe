/** Thrown by a row, or by a fixture it opens, that cannot be had on this machine or of this Warren: no failure. */
export class Skip extends Error {
  override name = 'Skip'
}

/** Thrown by a row or fixture that this machine or this version of Warren cannot run. It is not a failure. */
export class Skip extends Error {
  override name = 'Skip'
}

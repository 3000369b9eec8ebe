/**
 * Clean-up of tests that start processes. node:test runs no further `after` hooks once one has failed, so a story that
 * failed would leave its virtual machines running. Clean-ups registered here all run, in the order of their registration.
 */
import { after } from 'node:test'

/** A test, or `{ after }` for all tests of a file. */
export type Scope = { after(cleanUp: () => Promise<void>): void }
type CleanUp = () => Promise<void> | void

const ofFile: CleanUp[] = []
const ofTests = new WeakMap<Scope, CleanUp[]>()

export function addCleanUp(scope: Scope, cleanUp: CleanUp): void {
  const list = scope.after === after ? ofFile : (ofTests.get(scope) ?? [])
  if (list !== ofFile) ofTests.set(scope, list)
  list.push(cleanUp)
  if (list.length === 1) scope.after(() => runAll(list))
}

/** For an error outside of tests, at the top of a file: node:test then runs no hooks at all. */
export const cleanUpFile = (): Promise<void> => runAll(ofFile)

async function runAll(list: CleanUp[]): Promise<void> {
  const errors: unknown[] = []
  for (const cleanUp of list.splice(0)) {
    try {
      await cleanUp()
    } catch (error) {
      errors.push(error)
    }
  }
  if (errors.length === 1) throw errors[0]
  if (errors.length > 1) throw new AggregateError(errors, `${errors.length} clean-ups failed: ${errors.join('; ')}`)
}

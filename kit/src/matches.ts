/**
 * Checks values against schemas, with a function that is generated from the schema when it is first used. That is many times
 * as fast as walking through the schema at each check (`Value.Check`), which remains for what is read once, at a start for example.
 */
import type { Static, TSchema } from 'typebox'
import { Compile, type Validator } from 'typebox/compile'

/** By the schema itself: schemas are constants of their modules. */
const validators = new WeakMap<TSchema, Validator>()

export function matches<Schema extends TSchema>(schema: Schema, value: unknown): value is Static<Schema> {
  let validator = validators.get(schema)
  if (!validator) {
    validator = Compile(schema)
    validators.set(schema, validator)
  }
  return validator.Check(value)
}

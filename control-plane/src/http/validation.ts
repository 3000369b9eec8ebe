/**
 * Two validators. Queries and path parameters are text, so "5" is converted to 5. Bodies are typed, so "5" in place of a
 * number is an error, and null must not become 0. Neither removes or adds fields: with Fastify's default
 * `removeAdditional`, an environment variable with an invalid name would be dropped and the request would succeed.
 */
import { Ajv, type ErrorObject } from 'ajv'
import type { FastifySchemaCompiler } from 'fastify'

const OPTIONS = { removeAdditional: false, useDefaults: false, allErrors: false, strict: false } as const
const typed = new Ajv({ ...OPTIONS, coerceTypes: false })
const textual = new Ajv({ ...OPTIONS, coerceTypes: true })

export const compileValidator: FastifySchemaCompiler<object> = ({ schema, httpPart }) =>
  (httpPart === 'body' ? typed : textual).compile(schema)

/** The invalid field and what is wrong with it, or undefined if the error is not from a validator. */
export function validationFields(error: unknown): Record<string, string> | undefined {
  const { validation, validationContext } = error as { validation?: ErrorObject[]; validationContext?: string }
  if (!validation || validation.length === 0) return undefined
  const fault = mostSpecific(validation)
  const field = fieldOf(fault) || validationContext || 'body'
  return { [field]: textOf(fault) }
}

/** A field that may be null yields an error for each branch. The one about null would not help the reader. */
const mostSpecific = (errors: ErrorObject[]): ErrorObject =>
  errors.find((error) => error.params.type !== 'null' && error.keyword !== 'anyOf') ?? errors[0]!

function fieldOf(error: ErrorObject): string {
  const at = error.instancePath.split('/').slice(1).map(unescapePointer)
  if (error.keyword === 'required') at.push(String(error.params.missingProperty))
  return at.join('.')
}

function textOf(error: ErrorObject): string {
  if (error.keyword === 'required') return 'is required'
  if (error.keyword === 'enum') return `must be one of ${error.params.allowedValues.join(', ')}`
  if (error.keyword === 'additionalProperties') return `${error.params.additionalProperty} is not a valid name`
  return error.message ?? 'is not valid'
}

const unescapePointer = (part: string): string => part.replaceAll('~1', '/').replaceAll('~0', '~')

/** Queries and path parameters are validated by their schemas. The deploy body has a validator in uploads/. */
import { Ajv, type ErrorObject } from 'ajv'
import type { FastifySchemaCompiler } from 'fastify'

const ajv = new Ajv({ removeAdditional: false, useDefaults: false, allErrors: false, strict: false, coerceTypes: true })

export const compileValidator: FastifySchemaCompiler<object> = ({ schema }) => ajv.compile(schema)

/** `chain: must be one of …`, or undefined if the error is not from a validator. */
export function validationText(error: unknown): string | undefined {
  const { validation, validationContext } = error as { validation?: ErrorObject[]; validationContext?: string }
  const fault = validation?.[0]
  if (!fault) return undefined
  const field = fault.instancePath.split('/').slice(1).join('.') || validationContext || 'request'
  return `${field}: ${fault.message ?? 'is not valid'}`
}

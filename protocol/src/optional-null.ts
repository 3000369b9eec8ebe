import { type TSchema, Type } from 'typebox'

/** A field of a request body in which null means the same as absent. Responses never contain such nulls. */
export const optionalNull = <S extends TSchema>(schema: S) => Type.Optional(Type.Union([schema, Type.Null()]))

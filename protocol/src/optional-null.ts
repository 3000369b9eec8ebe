import { type TSchema, Type } from 'typebox'

/** For fields of request bodies: null equals absent (wire 1.1, "accept sloppy requests"). Answers never use it. */
export const optionalNull = <S extends TSchema>(schema: S) => Type.Optional(Type.Union([schema, Type.Null()]))

import { Type } from 'typebox'

export const ChainEntry = Type.Object({
  chain: Type.String({ description: 'Name of the chain' }),
  chain_id: Type.Integer(),
  tokens: Type.Array(Type.String(), { description: 'Names of the tokens in which it can be paid' }),
})

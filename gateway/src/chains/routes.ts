import { Type } from 'typebox'
import type { Deps } from '../deps.ts'
import type { App } from '../http/server.ts'
import { getBalances } from './balance.ts'
import { ChainEntry } from './entry.ts'
import { listRecipients } from './recipients.ts'
import { listChains } from './table.ts'

const TokenBalance = Type.Object({
  token: Type.String(),
  symbol: Type.String(),
  address: Type.String({ description: 'Contract of the token' }),
  balance: Type.String({ description: 'With all decimals, such as `18.000000`' }),
  balance_raw: Type.String({ description: 'In the smallest unit of the token' }),
  decimals: Type.Integer(),
})

export function chainRoutes(app: App, deps: Deps): void {
  const config = { signature: 'none' } as const
  app.get(
    '/agent/chains',
    {
      config,
      schema: {
        summary: 'Chains and tokens in which deployments can be paid',
        tags: ['chains'],
        response: { 200: Type.Object({ chains: Type.Array(ChainEntry) }) },
      },
    },
    async () => ({ chains: listChains() }),
  )
  app.get(
    '/agent/recipients',
    {
      config,
      schema: {
        summary: 'Addresses that receive payments',
        tags: ['chains'],
        response: {
          200: Type.Object({
            updated_at: Type.String({ format: 'date-time' }),
            recipients: Type.Array(Type.Object({ chain: Type.String(), address: Type.String() })),
          }),
        },
      },
    },
    async () => listRecipients(deps),
  )
  app.get(
    '/agent/balance/:address',
    {
      config,
      schema: {
        summary: 'Token balances of an address, read from the chain',
        tags: ['chains'],
        params: Type.Object({ address: Type.String() }),
        querystring: Type.Object({ chain: Type.Optional(Type.String({ description: 'Default: arbitrum' })) }),
        response: {
          200: Type.Object({
            address: Type.String(),
            chain: Type.String(),
            chain_id: Type.Integer(),
            balances: Type.Array(TokenBalance),
          }),
        },
      },
    },
    async ({ params, query }) => getBalances(deps, params.address, query.chain),
  )
}

import { CreditEntryView, CreditLedgerQuery, CreditView, ok, page, success } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { paged } from '../http/pagination.ts'
import type { App } from '../http/server.ts'
import { getCredit } from './get.ts'
import { listCreditEntries } from './list-entries.ts'

export function creditRoutes(app: App, deps: Deps): void {
  app.get(
    '/v1/credit',
    {
      config: { access: 'user' },
      schema: {
        summary: 'Get the credit of the caller, what its sandboxes cost now, and how long the credit lasts',
        tags: ['identity'],
        response: { 200: success(CreditView) },
      },
    },
    async (request) => ok(await getCredit(deps, request.caller.user.id)),
  )

  app.get(
    '/v1/credit/ledger',
    {
      config: { access: 'user' },
      schema: {
        summary: 'List every change of the credit of the caller, newest first',
        tags: ['identity'],
        querystring: CreditLedgerQuery,
        response: { 200: success(page(CreditEntryView)) },
      },
    },
    async (request) => {
      const { entries, ...counts } = await listCreditEntries(deps.db, request.caller.user.id, request.query)
      return ok(paged(entries, counts))
    },
  )
}

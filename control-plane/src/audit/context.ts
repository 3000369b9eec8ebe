/**
 * The id of the audit log entry of the current call. What the call causes names it: the moves of a sandbox and the webhook
 * events. It is passed by AsyncLocalStorage, as traces are, because those are many layers below the route.
 */
import { AsyncLocalStorage } from 'node:async_hooks'

const storage = new AsyncLocalStorage<string>()

export const runWithAuditId = <T>(id: string, work: () => T): T => storage.run(id, work)

/** Undefined for automatic work, which has no entry. */
export const currentAuditId = (): string | undefined => storage.getStore()

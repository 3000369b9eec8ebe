/**
 * Every column that holds secrets. A rotation encrypts all of them again, so a new one must be listed here; its table has
 * a column `key_id` (migration 0006).
 */
import type { SecretPlace } from './cipher.ts'

export type SecretColumn = { table: string; column: string; key: readonly string[] }

const ENVS: SecretColumn = { table: 'sandbox_envs', column: 'envs', key: ['sandbox_id'] }
const RESPONSE: SecretColumn = { table: 'idempotency_keys', column: 'answer', key: ['caller', 'key'] }

const WEBHOOK: SecretColumn = { table: 'webhook_endpoints', column: 'secret', key: ['id'] }

const DISK: SecretColumn = { table: 'disks', column: 'credentials', key: ['id'] }

export const SECRET_COLUMNS: readonly SecretColumn[] = [ENVS, RESPONSE, WEBHOOK, DISK]

export const envsPlace = (sandboxId: string): SecretPlace => placeOf(ENVS, [sandboxId])

export const webhookSecretPlace = (endpointId: string): SecretPlace => placeOf(WEBHOOK, [endpointId])

export const diskCredentialsPlace = (diskId: string): SecretPlace => placeOf(DISK, [diskId])

/** Of a request that creates a secret (http/idempotency.ts). */
export const responsePlace = (caller: string, key: string): SecretPlace => placeOf(RESPONSE, [caller, key])

/** `values` are those of the primary key, in the order of `key`. */
export const placeOf = ({ table, column }: SecretColumn, values: string[]): SecretPlace => ({
  table,
  column,
  row: values.length === 1 ? values[0]! : JSON.stringify(values),
})

/** The types of the tables in the schema `gateway`. */
import type { ColumnType, Generated, Selectable } from 'kysely'
import type { ChainName, TokenName } from '../chains/table.ts'
import type { RunPlan } from '../deployments/plan.ts'
import type { DeploymentStatus, ProjectStatus } from '../projects/statuses.ts'
import type { Settings } from '../uploads/settings.ts'

/** Set by the database when the row is inserted. */
type CreatedAt = ColumnType<Date, Date | undefined, never>

export type Tables = {
  'gateway.recipients': { address: string; since: Date }
  'gateway.nonces': { wallet: string; nonce: string; expires_at: Date }
  'gateway.wallets': {
    address: string
    balance_micro: ColumnType<bigint, never, never>
    unpaid_since: Date | null
    created_at: CreatedAt
  }
  'gateway.projects': {
    id: Generated<string>
    wallet: string
    unique_name: string
    display_name: string
    description: string | null
    status: ProjectStatus
    url: string | null
    paused_at: Date | null
    metered_until: Date | null
    meter_remainder: Generated<bigint>
    created_at: CreatedAt
    deleted_at: Date | null
    live_deployment_id: string | null
  }
  'gateway.deployments': {
    id: Generated<string>
    project_id: string
    wallet: string
    status: DeploymentStatus
    reason: string | null
    body_digest: string
    upload_digest: string
    settings: ColumnType<Settings, string, string>
    secrets: Buffer | null
    created_at: CreatedAt
    port: number | null
    run: ColumnType<RunPlan | null, string | null, string | null>
    image: string | null
    claimed_by: string | null
    claimed_until: Date | null
    attempt: Generated<number>
    started_at: Date | null
    ready_at: Date | null
  }
  'gateway.sandboxes': {
    name: string
    sandbox_id: string | null
    project_id: string
    deployment_id: string
    role: SandboxRole
    attempt: number
    process_id: string | null
    output_seq: Generated<bigint>
    is_paused: Generated<boolean>
    drain_until: Date | null
    created_at: CreatedAt
  }
  'gateway.log_lines': {
    deployment_id: string
    seq: bigint
    at: Date
    source: LogSource
    stream: 'stdout' | 'stderr'
    text: string
  }
  'gateway.payments': {
    hash: string
    wallet: string
    chain: ChainName
    token: TokenName
    amount_micro: bigint
    block_number: bigint
    block_hash: string
    status: PaymentStatus
    unique_name: string
    months: number
    project_id: string | null
    deployment_id: string | null
    balance_checked: Generated<boolean>
    created_at: ColumnType<Date, Date | undefined, Date>
    checked_at: ColumnType<Date, Date | undefined, Date>
  }
  'gateway.settlements': {
    id: Generated<string>
    chain: ChainName
    token: TokenName
    payer: string
    nonce: string
    amount_raw: bigint
    valid_before: bigint
    transport: PaymentTransport
    unique_name: string
    months: number
    status: Generated<SettlementStatus>
    from_block: bigint
    calldata: string | null
    settler: string | null
    account_nonce: bigint | null
    raw_transaction: string | null
    sent_at: Date | null
    leased_until: Date
    created_at: CreatedAt
  }
  'gateway.quotes': {
    wallet: string
    unique_name: string
    months: number
    price_micro: bigint
    counts_pool: boolean
    expires_at: Date
  }
  'gateway.ledger': {
    id: Generated<bigint>
    wallet: string
    amount_micro: bigint
    kind: 'payment' | 'reversal' | 'usage'
    payment_hash: string | null
    project_id: string | null
    created_at: CreatedAt
  }
}

export type SandboxRole = 'build' | 'run'
export type LogSource = 'gateway' | 'build' | 'app'
export type PaymentStatus = 'accepted' | 'safe' | 'orphaned'
export type PaymentTransport = 'x402' | 'mpp'
export type SettlementStatus = 'pending' | 'settled' | 'failed'
export type ProjectRow = Selectable<Tables['gateway.projects']>
export type DeploymentRow = Selectable<Tables['gateway.deployments']>
export type SandboxRow = Selectable<Tables['gateway.sandboxes']>
export type PaymentRow = Selectable<Tables['gateway.payments']>
export type SettlementRow = Selectable<Tables['gateway.settlements']>

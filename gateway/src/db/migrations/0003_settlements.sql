-- Payments that the gateway itself brings to a chain: an authorization that the payer signed (EIP-3009), sent by the settler.
-- The row is written before the transaction is sent, so that a crash in between loses no payment and sends none twice.
create table gateway.settlements (
  id uuid primary key default gen_random_uuid(),
  chain text not null,
  token text not null,
  payer text not null check (payer = lower(payer)),
  -- Of the authorization. A token takes it once.
  nonce text not null check (nonce = lower(nonce)),
  amount_raw bigint not null check (amount_raw > 0),
  -- Unix seconds, by the clock of the chain. After that the token refuses the authorization.
  valid_before bigint not null,
  transport text not null check (transport in ('x402', 'mpp')),
  -- What it is paid for, as in gateway.payments.
  unique_name text not null,
  months integer not null,
  -- pending: may be on the chain; settled: counted in gateway.payments; failed: can never be on the chain.
  status text not null default 'pending' check (status in ('pending', 'settled', 'failed')),
  -- Where to look for it on the chain.
  from_block bigint not null,
  -- The calldata of the transaction, and the transaction as it was signed last. Null when another party had sent the authorization.
  calldata text,
  settler text,
  account_nonce bigint,
  raw_transaction text,
  sent_at timestamptz,
  -- A request waits for it until then. Afterwards the background credits it.
  leased_until timestamptz not null,
  created_at timestamptz not null default now(),
  unique (chain, token, payer, nonce)
);
create index settlements_pending on gateway.settlements (chain, created_at) where status = 'pending';

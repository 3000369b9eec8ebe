-- The gateway shares the database of the control plane and uses nothing of it: all its tables are in this schema.
-- Addresses of wallets, hashes of transactions and names are stored in lower case.

-- When an address that receives payments went into service. Older transfers to it are not payments.
create table gateway.recipients (
  address text primary key,
  since timestamptz not null
);

-- A signed request is accepted once. The primary key decides between parallel copies.
create table gateway.nonces (
  wallet text not null,
  nonce uuid not null,
  expires_at timestamptz not null,
  primary key (wallet, nonce)
);
create index nonces_expiry on gateway.nonces (expires_at);

-- One pool of credit per wallet, in millionths of a dollar. Below zero after a payment was reverted by its chain.
create table gateway.wallets (
  address text primary key check (address = lower(address)),
  balance_micro bigint not null default 0,
  -- Set while the pool is empty and projects wait for credit.
  unpaid_since timestamptz,
  created_at timestamptz not null default now()
);

create table gateway.projects (
  id uuid primary key default gen_random_uuid(),
  wallet text not null references gateway.wallets,
  unique_name text not null,
  display_name text not null,
  description text,
  status text not null check (status in
    ('queued', 'pending', 'building', 'deploying', 'promoting', 'active', 'failed', 'deleting')),
  -- Null until a deployment succeeded.
  url text,
  -- Set while it waits for credit with its app stopped. The project is then `pending`.
  paused_at timestamptz,
  -- Usage is charged up to this time; what is less than a millionth of a dollar is carried over.
  metered_until timestamptz,
  meter_remainder bigint not null default 0,
  created_at timestamptz not null default now(),
  deleted_at timestamptz
);
-- Names become DNS labels, so they are unique in any spelling. A deleted project releases its name.
create unique index projects_unique_name on gateway.projects (lower(unique_name)) where deleted_at is null;
create index projects_wallet on gateway.projects (wallet, created_at) where deleted_at is null;

create table gateway.deployments (
  id uuid primary key default gen_random_uuid(),
  project_id uuid not null references gateway.projects,
  wallet text not null references gateway.wallets,
  status text not null check (status in
    ('queued', 'pending', 'building', 'deploying', 'promoting', 'active', 'failed', 'cancelled')),
  reason text,
  -- SHA-256 of the request body: the same request again, while this one is unfinished, is the same deployment.
  body_digest text not null,
  -- SHA-256 of the packed upload, and its name in the data directory.
  upload_digest text not null,
  settings jsonb not null,
  -- Environment variables of the build and of the app, encrypted.
  secrets bytea,
  created_at timestamptz not null default now()
);
create index deployments_project on gateway.deployments (project_id, created_at);
create index deployments_wallet on gateway.deployments (wallet, created_at);
create index deployments_upload on gateway.deployments (upload_digest);

-- Every transaction that was counted as a payment. The hash alone is the key, over all chains and transports.
create table gateway.payments (
  hash text primary key check (hash = lower(hash)),
  wallet text not null references gateway.wallets,
  chain text not null,
  token text not null,
  amount_micro bigint not null check (amount_micro > 0),
  block_number bigint not null,
  block_hash text not null,
  -- accepted: in a block that the chain may still drop; safe: settled; orphaned: dropped, credit taken back, and the
  -- hash may be presented again.
  status text not null check (status in ('accepted', 'safe', 'orphaned')),
  -- What it was paid for. Without a deployment it was too little, and counts towards this name and time.
  unique_name text not null,
  months integer not null,
  project_id uuid references gateway.projects,
  deployment_id uuid references gateway.deployments,
  -- Whether the balance of the recipient was compared with the amount.
  balance_checked boolean not null default false,
  created_at timestamptz not null default now(),
  checked_at timestamptz not null default now()
);
create index payments_open on gateway.payments (checked_at) where status = 'accepted';
create index payments_partial on gateway.payments (wallet, unique_name) where deployment_id is null;

-- Prices that were asked. The lowest one that has not expired is honoured.
create table gateway.quotes (
  wallet text not null,
  unique_name text not null,
  months integer not null,
  price_micro bigint not null,
  -- Whether the pool was counted when the missing amount was calculated.
  counts_pool boolean not null,
  expires_at timestamptz not null,
  primary key (wallet, unique_name, months, price_micro, counts_pool)
);
create index quotes_expiry on gateway.quotes (expires_at);

-- Everything that changes a pool. Rows are only ever inserted, and each insert changes the balance in the same
-- statement, so that the balance is always the sum of the entries.
create table gateway.ledger (
  id bigint generated always as identity primary key,
  wallet text not null references gateway.wallets,
  amount_micro bigint not null check (amount_micro <> 0),
  kind text not null check (kind in ('payment', 'reversal', 'usage')),
  payment_hash text references gateway.payments,
  project_id uuid references gateway.projects,
  created_at timestamptz not null default now(),
  check ((kind = 'payment') = (amount_micro > 0)),
  check ((kind = 'usage') = (project_id is not null)),
  check ((kind = 'usage') = (payment_hash is null))
);
create index ledger_wallet on gateway.ledger (wallet, id);

create function gateway.add_to_balance() returns trigger language plpgsql as $$
begin
  update gateway.wallets set balance_micro = balance_micro + new.amount_micro where address = new.wallet;
  return null;
end $$;
create trigger ledger_balance after insert on gateway.ledger
  for each row execute function gateway.add_to_balance();

create function gateway.refuse_change() returns trigger language plpgsql as $$
begin
  raise exception 'entries of the ledger are never changed or deleted';
end $$;
create trigger ledger_append_only before update or delete or truncate on gateway.ledger
  for each statement execute function gateway.refuse_change();

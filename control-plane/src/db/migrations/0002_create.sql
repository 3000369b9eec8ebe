-- Columns and tables for create, destroy and their recovery.

alter table sandboxes
  -- The process that runs the operation. If it dies, a sweep takes the operation over.
  add column owner text,
  -- Memory reserved on the host. Set to 0 in the statement that releases it, so that it is released only once.
  add column reserved_mib integer not null default 0 check (reserved_mib >= 0),
  -- The last activity (docs/api.md#asynchronous-operations), at most a few seconds late.
  add column last_active_at timestamptz;

create index sandboxes_reserved on sandboxes (host_id) where reserved_mib > 0;
create index sandboxes_on_host on sandboxes (host_id, status) where status not in ('destroyed', 'failed');
-- The daily cap counts creations that succeeded or are in progress, not those that failed.
create index sandboxes_daily on sandboxes (user_id, created_at)
  where running_at is not null or status in ('creating', 'forking');

alter table hosts
  -- The address of its agent, such as `unix:/path`.
  add column address text not null default '',
  -- The addresses of its sandboxes, and where in the block the next search begins. A released address is therefore not
  -- reused until the search has gone through the whole block.
  add column cidr cidr,
  add column address_cursor bigint not null default 0,
  add column images jsonb not null default '[]',
  -- Separate from the status, so that a draining host that was dead for a while is still draining afterwards.
  add column draining boolean not null default false;

-- Usage for billing. An interval is opened and closed in the transaction of the move that causes it (sandboxes/usage.ts).
-- Sizes are copied, because a disk may grow later.

create table usage_intervals (
  id bigint generated always as identity primary key,
  sandbox_id text not null references sandboxes,
  user_id text not null references users,
  kind text not null check (kind in ('running', 'paused', 'error')),
  shape text not null,
  mem_mib integer not null,
  disk_mib integer not null,
  started_at timestamptz not null default now(),
  ended_at timestamptz check (ended_at >= started_at)
);
create unique index usage_intervals_open on usage_intervals (sandbox_id) where ended_at is null;
create index usage_intervals_user on usage_intervals (user_id, started_at);

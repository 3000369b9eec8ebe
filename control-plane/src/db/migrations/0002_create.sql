-- What create, destroy and their recovery need.

alter table sandboxes
  -- The process that works on the operation; when it falls silent, a sweep takes the operation from it.
  add column owner text,
  -- What this row holds of its host. Set to 0 in the statement that gives it back, so it is given back once.
  add column reserved_mib integer not null default 0 check (reserved_mib >= 0),
  -- The last thing that counts as activity (wire 2), a few seconds late at most.
  add column last_active_at timestamptz;

create index sandboxes_reserved on sandboxes (host_id) where reserved_mib > 0;
create index sandboxes_on_host on sandboxes (host_id, status) where status not in ('destroyed', 'failed');
-- The daily cap counts what succeeded and what is under way; failed creations stay out of it.
create index sandboxes_daily on sandboxes (user_id, created_at)
  where running_at is not null or status in ('creating', 'forking');

alter table hosts
  -- Where its agent listens: `unix:/path`.
  add column address text not null default '',
  -- The addresses its sandboxes may have, and the place in it where the next search begins: an address that was given
  -- back rests until the search comes round again.
  add column cidr cidr,
  add column address_cursor bigint not null default 0,
  add column images jsonb not null default '[]',
  -- Kept apart from the status, so that a drained host that falls silent comes back drained.
  add column draining boolean not null default false;

-- What was used and when. Opened and closed in the transaction of the move that causes it (sandboxes/usage.ts); the
-- sizes are copied because a disk may grow in between.

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

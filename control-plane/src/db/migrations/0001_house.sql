-- Users, keys, credit.

create table users (
  id text primary key,
  name text not null unique,
  -- The id at the users service or the OAuth server; null for users created here.
  external_id text unique,
  plan text not null check (plan in ('local', 'free', 'beginner', 'pro', 'enterprise')),
  operator boolean not null default false,
  -- Millionths of a credit, so that prices per second add up exactly.
  credit_micro bigint not null default 0,
  created_at timestamptz not null default now()
);

create table credit_entries (
  id bigint generated always as identity primary key,
  user_id text not null references users,
  amount_micro bigint not null,
  reason text not null,
  created_at timestamptz not null default now()
);
create index credit_entries_user on credit_entries (user_id, id);

create table api_keys (
  id text primary key,
  user_id text not null references users,
  name text not null,
  -- SHA-256. A key has 256 random bits and cannot be guessed, so a slow hash is not needed.
  hash bytea not null unique,
  hint text not null,
  created_at timestamptz not null default now(),
  revoked_at timestamptz
);
create index api_keys_user on api_keys (user_id);

-- Catalog and hosts.

create table rootfs (
  name text primary key,
  description text not null,
  enabled boolean not null,
  -- The command with which an operator enables it.
  enable_with text,
  deprecated boolean not null default false,
  successor text,
  position integer not null
);
insert into rootfs (name, description, enabled, enable_with, position) values
  ('debian:13', 'Debian 13, small: shell tools and curl', true, null, 1),
  ('devbox:1', 'Development toolchain: git, Python, Node, Go, compilers', true, null, 2),
  ('desktop:1', 'Graphical desktop with browsers, for the computer endpoints', false, 'warren images build desktop:1', 3),
  ('ubuntu:26.04', 'Ubuntu 26.04', false, 'warren images import <oci-reference or tarball> --name ubuntu:26.04', 4),
  ('alpine:3.20', 'Alpine 3.20', false, 'warren images import <oci-reference or tarball> --name alpine:3.20', 5);

create table hosts (
  id text primary key,
  region text not null,
  status text not null check (status in ('active', 'draining', 'dead')),
  mem_mib integer not null,
  -- Reserved for sandboxes. Raised in the transaction that places one, so a host is never overcommitted.
  reserved_mib integer not null default 0 check (reserved_mib >= 0 and reserved_mib <= mem_mib),
  vm_count integer not null default 0 check (vm_count >= 0),
  rootfses text[] not null default '{}',
  seen_at timestamptz not null default now(),
  created_at timestamptz not null default now()
);

-- Sandboxes. Rows are never deleted, so a destroyed sandbox can still be read.

create table sandboxes (
  id text primary key,
  user_id text not null references users,
  name text not null,
  status text not null check (status in ('creating', 'running', 'pausing', 'paused', 'resuming', 'forking',
                                         'error', 'destroying', 'destroyed', 'failed')),
  -- The number of the operation that may change this row. Each new operation raises it.
  fence bigint not null default 1,
  status_reason text,
  host_id text references hosts,
  ip inet,
  shape text not null,
  rootfs text not null,
  region text not null,
  vcpu integer not null,
  mem_mib integer not null,
  disk_mib integer not null,
  ingress_enabled boolean not null default false,
  auto_pause_after_seconds integer,
  env_names text[] not null default '{}',
  ssh_pubkeys text[] not null default '{}',
  egress text[] not null default '{}',
  bandwidth_quota_bytes bigint not null,
  bandwidth_ingress_bytes bigint not null default 0,
  spawn_ms double precision,
  forked_from text references sandboxes,
  created_at timestamptz not null default now(),
  running_at timestamptz,
  paused_at timestamptz,
  last_resumed_at timestamptz,
  destroyed_at timestamptz
);
create index sandboxes_list on sandboxes (user_id, created_at desc, id desc);
create index sandboxes_list_by_status on sandboxes (user_id, status, created_at desc, id desc);
create unique index sandboxes_live_name on sandboxes (user_id, name) where status not in ('destroyed', 'failed');
create unique index sandboxes_live_ip on sandboxes (ip) where status not in ('destroyed', 'failed');
create index sandboxes_unsettled on sandboxes (status)
  where status in ('creating', 'pausing', 'resuming', 'forking', 'destroying');

create table access_tokens (
  sandbox_id text primary key references sandboxes,
  hash bytea not null unique,
  hint text not null,
  created_at timestamptz not null default now(),
  rotated_at timestamptz
);

-- The number of sandboxes of each status per user. Lists need an exact total, and counting a million rows for each page
-- takes longer than reading the page. One row per user, so that two moves of one user cannot deadlock.

create table sandbox_counts (
  user_id text primary key references users,
  creating bigint not null default 0,
  running bigint not null default 0,
  pausing bigint not null default 0,
  paused bigint not null default 0,
  resuming bigint not null default 0,
  forking bigint not null default 0,
  error bigint not null default 0,
  destroying bigint not null default 0,
  destroyed bigint not null default 0,
  failed bigint not null default 0
);

create function add_sandbox_counts(changes jsonb) returns void language sql as $$
  insert into sandbox_counts as c
    (user_id, creating, running, pausing, paused, resuming, forking, error, destroying, destroyed, failed)
  select user_id,
    coalesce(sum(n) filter (where status = 'creating'), 0), coalesce(sum(n) filter (where status = 'running'), 0),
    coalesce(sum(n) filter (where status = 'pausing'), 0), coalesce(sum(n) filter (where status = 'paused'), 0),
    coalesce(sum(n) filter (where status = 'resuming'), 0), coalesce(sum(n) filter (where status = 'forking'), 0),
    coalesce(sum(n) filter (where status = 'error'), 0), coalesce(sum(n) filter (where status = 'destroying'), 0),
    coalesce(sum(n) filter (where status = 'destroyed'), 0), coalesce(sum(n) filter (where status = 'failed'), 0)
  from jsonb_to_recordset(changes) as change (user_id text, status text, n bigint)
  group by user_id
  -- The same order everywhere, so that two statements over several users cannot deadlock.
  order by user_id
  on conflict (user_id) do update set
    creating = c.creating + excluded.creating, running = c.running + excluded.running,
    pausing = c.pausing + excluded.pausing, paused = c.paused + excluded.paused,
    resuming = c.resuming + excluded.resuming, forking = c.forking + excluded.forking,
    error = c.error + excluded.error, destroying = c.destroying + excluded.destroying,
    destroyed = c.destroyed + excluded.destroyed, failed = c.failed + excluded.failed
$$;

create function count_new_sandboxes() returns trigger language plpgsql as $$
declare changes jsonb;
begin
  select jsonb_agg(change) into changes
  from (select user_id, status, count(*) as n from new_rows group by user_id, status) change;
  if changes is not null then perform add_sandbox_counts(changes); end if;
  return null;
end $$;

create function count_moved_sandboxes() returns trigger language plpgsql as $$
declare changes jsonb;
begin
  select jsonb_agg(change) into changes
  from (
    select user_id, status, sum(n) as n
    from (select user_id, status, 1 as n from new_rows union all select user_id, status, -1 from old_rows) row
    group by user_id, status having sum(n) <> 0
  ) change;
  if changes is not null then perform add_sandbox_counts(changes); end if;
  return null;
end $$;

create trigger count_new after insert on sandboxes
  referencing new table as new_rows for each statement execute function count_new_sandboxes();
create trigger count_moved after update on sandboxes
  referencing new table as new_rows old table as old_rows for each statement execute function count_moved_sandboxes();

-- Stored responses of POST requests with an Idempotency-Key.

create table idempotency_keys (
  caller text not null,
  key text not null,
  request_hash bytea not null,
  -- The process that handles the request. If it dies, the next request with the key takes over.
  owner text not null,
  status integer,
  answer text,
  created_at timestamptz not null default now(),
  primary key (caller, key)
);
create index idempotency_keys_age on idempotency_keys (created_at);

-- Heartbeats of all control plane processes. What a dead process held is released.

create table service_processes (
  id text primary key,
  pools text[] not null default '{}',
  started_at timestamptz not null default now(),
  seen_at timestamptz not null default now()
);

-- Notifies every process when a credential changes, so that it clears its cache.

create function credentials_changed() returns trigger language plpgsql as $$
begin
  perform pg_notify('credentials_changed', '');
  return null;
end $$;

create trigger users_changed after update on users for each statement execute function credentials_changed();
create trigger api_keys_changed after update or delete on api_keys
  for each statement execute function credentials_changed();
create trigger access_tokens_changed after update or delete on access_tokens
  for each statement execute function credentials_changed();

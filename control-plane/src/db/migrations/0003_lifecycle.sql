-- What pause, resume, fork, auto-pause and their history need.

alter table sandboxes
  -- When the status last changed and who caused the operation it belongs to (protocol/sandbox-event.ts).
  add column status_since timestamptz not null default now(),
  add column status_actor text not null default 'user'
    check (status_actor in ('user', 'sandbox', 'auto-pause', 'system', 'operator')),
  -- The newest saved state, as its host numbers them; null before the first pause.
  add column generation bigint,
  add column auto_resume boolean not null default false;

-- The idle time of what runs already counts from what is known of it.
update sandboxes set last_active_at = coalesce(last_active_at, last_resumed_at, running_at) where status = 'running';
create index sandboxes_auto_pause on sandboxes (last_active_at)
  where status = 'running' and auto_pause_after_seconds is not null;

-- Values of environment variables go into the guest anew at each resume, and into its forks. They are never shown, so
-- they are not in the row that everything else reads. Gone with the sandbox.
create table sandbox_envs (
  sandbox_id text primary key references sandboxes,
  envs jsonb not null
);

create table sandbox_events (
  id bigint generated always as identity primary key,
  sandbox_id text not null references sandboxes,
  at timestamptz not null default now(),
  actor text not null,
  from_status text not null,
  to_status text not null,
  reason text,
  duration_ms double precision not null
);
create index sandbox_events_sandbox on sandbox_events (sandbox_id, id desc);
create index sandbox_events_age on sandbox_events (at);

-- All activity that this process saw up to then is written (guest/activity.ts). Nobody may take a sandbox for idle
-- without the word of every living process; one that has just come says nothing yet.
alter table service_processes add column activity_at timestamptz not null default '-infinity';

-- A fork that is left paused succeeded without ever having run.
drop index sandboxes_daily;
create index sandboxes_daily on sandboxes (user_id, created_at)
  where running_at is not null or status in ('creating', 'forking') or (forked_from is not null and status <> 'failed');

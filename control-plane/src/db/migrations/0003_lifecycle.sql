-- Columns and tables for pause, resume, fork, auto-pause and events.

alter table sandboxes
  -- When the status last changed, and who caused the operation (sandbox-event.ts).
  add column status_since timestamptz not null default now(),
  add column status_actor text not null default 'user'
    check (status_actor in ('user', 'sandbox', 'auto-pause', 'system', 'operator')),
  -- The number of the newest saved state, assigned by the host; null before the first pause.
  add column generation bigint,
  add column auto_resume boolean not null default false;

-- For sandboxes that are running already, the idle time starts at the last known event.
update sandboxes set last_active_at = coalesce(last_active_at, last_resumed_at, running_at) where status = 'running';
create index sandboxes_auto_pause on sandboxes (last_active_at)
  where status = 'running' and auto_pause_after_seconds is not null;

-- Values of environment variables are sent to the guest at each resume, and to forks. No response contains them, so they
-- are not in the sandbox's row. They are deleted with the sandbox.
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

-- All activity that this process saw up to this time has been written (guest/activity.ts). A sandbox counts as idle only
-- if every live process has written its activity; a process that has just started has not.
alter table service_processes add column activity_at timestamptz not null default '-infinity';

-- Includes forks with `start_paused`, which succeed without ever running.
drop index sandboxes_daily;
create index sandboxes_daily on sandboxes (user_id, created_at)
  where running_at is not null or status in ('creating', 'forking') or (forked_from is not null and status <> 'failed');

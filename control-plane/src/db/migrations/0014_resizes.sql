-- Resizes of disks that are not finished (sandboxes/resize.ts).

create table sandbox_resizes (
  sandbox_id text primary key references sandboxes,
  -- The size that the disk gets.
  disk_mib integer not null,
  -- The process that works on it. Null if none does.
  owner text,
  -- The call that caused it, and its Idempotency-Key.
  audit_id text,
  caller text,
  key text,
  -- How often the host was asked in vain, and when it is asked again.
  attempts integer not null default 0,
  retry_at timestamptz not null default now()
);

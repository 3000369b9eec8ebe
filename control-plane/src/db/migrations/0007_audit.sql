-- The audit log (audit/): one row for each call that changes something, and for each command of `warren admin`.

create table audit_log (
  -- `aud_<ulid>`: known before the row is written, so that what a call causes can name it.
  id text primary key,
  at timestamptz not null default now(),
  -- The account whose resources were concerned. Null for commands that concern no single account. No reference, because the
  -- log must not depend on other tables.
  user_id text,
  actor_kind text not null check (actor_kind in ('user', 'token', 'operator')),
  -- The id of the user, or for an operator the name of the login on the machine.
  actor text not null,
  -- Enough to recognise the credential, never more.
  credential text,
  action text not null,
  target text,
  outcome text not null check (outcome in ('success', 'fail', 'error')),
  -- The HTTP status, and the error code of a failed call.
  status integer,
  code text,
  request_id text
);
create index audit_log_user on audit_log (user_id, id desc);
create index audit_log_target on audit_log (target, id desc) where target is not null;
-- For retention and the operator's list. Rows are written in the order of time, so a block range is enough.
create index audit_log_age on audit_log using brin (at) with (pages_per_range = 16);

-- Append-only. Only the retention sweep may delete (audit/delete-old.ts).
create function audit_log_is_append_only() returns trigger language plpgsql as $$
begin
  if tg_op = 'DELETE' and current_setting('warren.audit_retention', true) = 'on' then return null; end if;
  raise exception 'the audit log is append-only';
end $$;

create trigger audit_log_append_only after update or delete or truncate on audit_log
  for each statement execute function audit_log_is_append_only();

-- The call that began the current operation of a sandbox, for the webhook events of its end.
alter table sandboxes add column status_audit_id text;

-- Webhook endpoints and deliveries (webhooks/).

create table webhook_endpoints (
  id uuid primary key default gen_random_uuid(),
  user_id text not null references users,
  url text not null,
  -- Encrypted (migration 0006).
  secret text not null,
  key_id text generated always as (secret_key_id(secret)) stored references secret_keys,
  -- Empty for all actions.
  events text[] not null default '{}',
  active boolean not null default true,
  failure_count integer not null default 0,
  created_at timestamptz not null default now(),
  -- The process that delivers to this endpoint at the moment. One at a time, so that the order of deliveries is kept and the
  -- number of simultaneous requests to the receiver is bounded.
  owner text
);
create index webhook_endpoints_user on webhook_endpoints (user_id, created_at desc, id);
create index webhook_endpoints_key on webhook_endpoints (key_id);

create table webhook_deliveries (
  id uuid primary key default gen_random_uuid(),
  -- The order of events. Of one sandbox it is the order of the transactions, because they lock its row.
  seq bigint generated always as identity,
  endpoint_id uuid not null references webhook_endpoints on delete cascade,
  event_action text not null,
  -- Deliveries with the same subject, such as a sandbox, are attempted in order.
  subject text not null,
  -- The exact body. It is signed at each attempt.
  payload text not null,
  audit_log_id text,
  status text not null default 'pending' check (status in ('pending', 'delivered', 'failed')),
  attempts integer not null default 0,
  last_error text,
  -- Null before the first attempt: as soon as possible.
  next_attempt_at timestamptz,
  delivered_at timestamptz,
  completed_at timestamptz,
  created_at timestamptz not null default now()
);
create index webhook_deliveries_due on webhook_deliveries (endpoint_id, next_attempt_at, seq) where status = 'pending';
create index webhook_deliveries_list on webhook_deliveries (endpoint_id, seq desc);
create index webhook_deliveries_completed on webhook_deliveries (completed_at) where completed_at is not null;
create index webhook_deliveries_created on webhook_deliveries using brin (created_at) with (pages_per_range = 16);

-- Adds a delivery for each active endpoint of the user that wants the action. Called in the transaction of the cause, so an
-- event exists exactly if its cause does. Fields of `data` that are null are left out.
create function emit_webhook_event(owner_id text, action text, about text, audit_id text, data json) returns void
language plpgsql as $$
declare
  target record;
  body text;
begin
  -- The lock makes an endpoint that is deleted at the same time absent, instead of violating the reference to it.
  for target in
    select id from webhook_endpoints
    where user_id = owner_id and active and (events = '{}' or action = any (events))
    order by id for key share
  loop
    body := coalesce(body, json_strip_nulls(json_build_object(
      'event', action,
      'occurredAt', to_char(now() at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
      'data', data))::text);
    insert into webhook_deliveries (endpoint_id, event_action, subject, payload, audit_log_id)
    values (target.id, action, about, body, audit_id);
    perform pg_notify('webhook_deliveries', target.id::text);
  end loop;
end $$;

create function emit_network_event(action text, network networks, member sandboxes) returns void language sql as $$
  select emit_webhook_event(network.user_id, action, member.id, member.status_audit_id, json_build_object(
    'id', network.id, 'name', network.name, 'network_id', network.id, 'sandbox_id', member.id))
$$;

-- A sandbox that is created in networks joins them before it runs. They are announced when it does: a create that fails emits
-- nothing.
create function announce_networks() returns trigger language plpgsql as $$
begin
  perform emit_network_event('network.attach', n, new)
  from network_members m join networks n on n.id = m.network_id where m.sandbox_id = new.id order by n.id;
  return null;
end $$;

create trigger announce_networks after update of status on sandboxes for each row
  when (old.status in ('creating', 'forking') and new.status in ('running', 'paused', 'error'))
  execute function announce_networks();

-- As in migration 0005, and emits the events.
create or replace function leave_networks() returns trigger language plpgsql as $$
declare left_networks text[];
begin
  select array_agg(network_id order by network_id) into left_networks
  from network_members where sandbox_id = new.id;
  if left_networks is null then return null; end if;
  perform from networks where id = any (left_networks) order by id for no key update;
  perform raise_network_revisions(array(
    select sandbox_id from network_members where network_id = any (left_networks) and sandbox_id <> new.id));
  delete from network_members where sandbox_id = new.id;
  if old.status not in ('creating', 'forking') then
    perform emit_network_event('network.detach', n, new) from networks n where n.id = any (left_networks) order by n.id;
  end if;
  return null;
end $$;

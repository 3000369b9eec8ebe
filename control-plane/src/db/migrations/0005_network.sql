-- Egress, private networks, bandwidth.

-- Bytes sent since the sandbox was created, as last reported by its host. Received bytes: bandwidth_ingress_bytes.
alter table sandboxes add column bandwidth_used_bytes bigint not null default 0;

-- Rows of deleted networks stay, because the daily cap counts creations. Their names can be used again.
create table networks (
  id text primary key,
  user_id text not null references users,
  name text not null,
  created_at timestamptz not null default now(),
  deleted_at timestamptz
);
create unique index networks_live_name on networks (user_id, name) where deleted_at is null;
create index networks_list on networks (user_id, created_at desc, id desc) where deleted_at is null;
create index networks_daily on networks (user_id, created_at);

create table network_members (
  network_id text not null references networks,
  sandbox_id text not null references sandboxes,
  joined_at timestamptz not null default now(),
  primary key (network_id, sandbox_id)
);
create index network_members_sandbox on network_members (sandbox_id);

-- Raised by every change to what the host of a sandbox must enforce: rules, quota, networks and their members. A separate
-- table, because a change to one sandbox affects all its peers and must not wait for locks on their rows. A sandbox
-- without a row here has revision 1.
create table network_revisions (
  sandbox_id text primary key references sandboxes,
  revision bigint not null
);

create function raise_network_revisions(ids text[]) returns void language sql as $$
  insert into network_revisions as r (sandbox_id, revision)
  -- The same order everywhere, so that two calls cannot deadlock.
  select id, 2 from (select distinct unnest(ids) as id) changed order by id
  on conflict (sandbox_id) do update set revision = r.revision + 1
$$;

-- Members of a network change only under the lock of its row: if two sandboxes join at the same time, the second sees the
-- first and raises its revision. Several networks are locked in the order of their ids.
create function leave_networks() returns trigger language plpgsql as $$
declare left_networks text[];
begin
  select array_agg(network_id order by network_id) into left_networks
  from network_members where sandbox_id = new.id;
  if left_networks is null then return null; end if;
  perform from networks where id = any (left_networks) order by id for no key update;
  perform raise_network_revisions(array(
    select sandbox_id from network_members where network_id = any (left_networks) and sandbox_id <> new.id));
  delete from network_members where sandbox_id = new.id;
  return null;
end $$;

-- Already at `destroying`, so that a network can be deleted right after the DELETE of its last member.
create trigger leave_networks after update of status on sandboxes
  for each row when (new.status in ('destroying', 'destroyed', 'failed')) execute function leave_networks();

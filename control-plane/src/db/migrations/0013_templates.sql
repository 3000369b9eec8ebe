-- Templates: root file systems that users build from Dockerfiles (templates/).

create table templates (
  id text primary key,
  user_id text not null references users,
  -- Not unique: a name means the latest ready build.
  name text not null,
  status text not null check (status in ('pending', 'building', 'ready', 'failed')),
  -- The base as FROM names it, the image on the host that this means, and the environment that it had at the time.
  base text not null,
  image text not null,
  base_env jsonb not null,
  dockerfile text not null,
  no_cache boolean not null,
  -- Default environment of sandboxes that are made from it.
  env jsonb not null,
  -- Number of the last attempt, and its start.
  attempt integer not null default 0,
  attempt_started_at timestamptz,
  -- Where it is built, or must be built because its base is there. Null again when a deleted template has left its host.
  host_id text references hosts,
  -- What its VM holds on that host. A template holds these from the start of its build until the host has ended it.
  ip inet,
  reserved_mib integer not null default 0,
  -- The result.
  ext4_size_bytes bigint not null default 0,
  min_disk_mib integer not null default 1,
  failure_reason text,
  -- The call that created it, for events that are emitted later.
  audit_id text,
  created_at timestamptz not null default now(),
  built_at timestamptz,
  deleted_at timestamptz
);
create index templates_user on templates (user_id, created_at desc, id desc) where deleted_at is null;
create index templates_user_day on templates (user_id, created_at);
create index templates_name on templates (user_id, name) where deleted_at is null;
-- Small whatever the number of templates: what the sweeps look at several times a second (templates/builds/).
create index templates_unfinished on templates (created_at)
  where (status in ('pending', 'building') and deleted_at is null)
    or reserved_mib > 0 or (deleted_at is not null and host_id is not null);

create table template_attempts (
  template_id text not null references templates,
  attempt integer not null,
  host_id text not null,
  started_at timestamptz not null default now(),
  ended_at timestamptz,
  -- Of an attempt that failed: a code of the host, and text for the owner.
  failure text,
  failure_reason text,
  steps_cached integer,
  steps_run integer,
  primary key (template_id, attempt)
);

-- `rootfs` is the name that the caller gave.
alter table sandboxes add column template_id text references templates;
create index sandboxes_template on sandboxes (template_id) where template_id is not null and status = 'creating';

-- One command that works as it is: the name is also a reference in Docker's registry.
update rootfs set enable_with = 'warren images import ' || name || ' --name ' || name where name in ('ubuntu:26.04', 'alpine:3.20');

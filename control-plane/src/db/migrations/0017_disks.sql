-- Disks: buckets of S3 stores, and their mounts in sandboxes (disks/).

-- Whether disks can be mounted in sandboxes of this host, as it reported last.
alter table hosts add column disks boolean not null default false;

-- Rows of deleted disks stay, because the daily cap counts creations. Their names can be used again.
create table disks (
  id text primary key,
  user_id text not null references users,
  name text not null,
  bucket text not null,
  endpoint text not null,
  region text not null,
  use_path_style boolean not null,
  -- Encrypted (migration 0006). Erased when the disk is deleted.
  credentials text,
  key_id text generated always as (secret_key_id(credentials)) stored references secret_keys,
  created_at timestamptz not null default now(),
  deleted_at timestamptz,
  check ((credentials is null) = (deleted_at is not null))
);
create unique index disks_live_name on disks (user_id, name) where deleted_at is null;
create index disks_list on disks (user_id, created_at desc, id desc) where deleted_at is null;
create index disks_daily on disks (user_id, created_at);
create index disks_key on disks (key_id);

create table disk_attachments (
  id text primary key,
  sandbox_id text not null references sandboxes,
  disk_id text not null references disks,
  mount_path text not null,
  sub_path text not null,
  read_only boolean not null,
  -- Rises with the credentials of the disk. Hosts report it with the status.
  revision integer not null default 1,
  -- As the host reported last.
  status text not null default 'pending' check (status in ('pending', 'mounted', 'failed')),
  error text,
  created_at timestamptz not null default now(),
  unique (sandbox_id, mount_path),
  check (error is null or status = 'failed')
);
create index disk_attachments_disk on disk_attachments (disk_id);

-- Raised by every change to the mounts that a sandbox should have. A separate table, because new credentials of a disk change
-- many sandboxes and must not wait for locks on their rows. A sandbox without a row here never had a disk.
create table mount_revisions (
  sandbox_id text primary key references sandboxes,
  revision bigint not null
);

create function raise_mount_revisions(ids text[]) returns void language sql as $$
  insert into mount_revisions as r (sandbox_id, revision)
  -- The same order everywhere, so that two calls cannot deadlock.
  select id, 1 from (select distinct unnest(ids) as id) changed order by id
  on conflict (sandbox_id) do update set revision = r.revision + 1
$$;

create function emit_mount_event(action text, disk disks, mount_path text, sandbox sandboxes) returns void language sql as $$
  select emit_webhook_event(disk.user_id, action, sandbox.id, sandbox.status_audit_id, json_build_object(
    'id', disk.id, 'name', disk.name, 'disk_id', disk.id, 'sandbox_id', sandbox.id, 'mount_path', mount_path))
$$;

-- Disks of a new sandbox are announced when it runs: a create that fails emits nothing.
create function announce_disks() returns trigger language plpgsql as $$
begin
  perform emit_mount_event('disk.attach', d, a.mount_path, new)
  from disk_attachments a join disks d on d.id = a.disk_id where a.sandbox_id = new.id order by a.id;
  return null;
end $$;

create trigger announce_disks after update of status on sandboxes for each row
  when (old.status = 'creating' and new.status in ('running', 'paused', 'error'))
  execute function announce_disks();

-- Already at `destroying`, so that a disk can be deleted right after the DELETE of its last sandbox.
create function detach_disks() returns trigger language plpgsql as $$
declare attachment record;
begin
  for attachment in select * from disk_attachments where sandbox_id = new.id order by id for update loop
    delete from disk_attachments where id = attachment.id;
    if old.status <> 'creating' then
      perform emit_mount_event('disk.detach', d, attachment.mount_path, new) from disks d where d.id = attachment.disk_id;
    end if;
  end loop;
  delete from mount_revisions where sandbox_id = new.id;
  return null;
end $$;

create trigger detach_disks after update of status on sandboxes
  for each row when (new.status in ('destroying', 'destroyed', 'failed')) execute function detach_disks();

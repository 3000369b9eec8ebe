-- The volume of a host's data directory, as it reports it. Null until its next heartbeat.
alter table hosts
  add column disk_total_mib integer,
  add column disk_free_mib integer,
  -- What must stay free.
  add column disk_floor_mib integer,
  -- What the disks and saved states of sandboxes take of it already.
  add column disk_sandboxes_mib integer;

-- What is promised to the sandboxes of a host is summed up from this index alone.
create index sandboxes_promised_disk on sandboxes (host_id) include (disk_mib, mem_mib)
  where status not in ('destroyed', 'failed');

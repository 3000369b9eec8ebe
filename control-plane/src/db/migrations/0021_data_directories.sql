-- The data directory with the VMs of a host's sandboxes, from its first start on (hosts/data-directory.ts).
create table data_directories (
  host_id text primary key,
  id text not null,
  -- Where it was at the last start.
  folder text not null
);

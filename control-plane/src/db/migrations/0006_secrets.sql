-- Secrets at rest (secrets/cipher.ts). A secret is stored as `warren1.<key id>.<ciphertext>`.

-- The keys with which secrets of this database are encrypted. More than one only during a rotation. The keys themselves
-- are not here, only their ids.
create table secret_keys (
  id text primary key,
  -- New secrets are encrypted with this one.
  current boolean not null,
  created_at timestamptz not null default now()
);
create unique index secret_keys_current on secret_keys (current) where current;

create function secret_key_id(sealed text) returns text immutable language sql as $$
  select case when starts_with(sealed, 'warren1.') then split_part(sealed, '.', 2) end
$$;

-- A table with a secret has its key's id as a column that references secret_keys. So a key that a row still needs cannot be
-- removed, and a process that has missed a rotation cannot store a secret under a removed key.

alter table sandbox_envs rename column envs to plain_envs;
alter table sandbox_envs alter column plain_envs drop not null;
alter table sandbox_envs
  add column envs text,
  add column key_id text generated always as (secret_key_id(envs)) stored references secret_keys;
create index sandbox_envs_key on sandbox_envs (key_id);

-- Values that an earlier version stored are encrypted at the start, which then drops the column (secrets/seal-plain-envs.ts).
-- Without any there is nothing to do.
do $$ begin
  if not exists (select from sandbox_envs) then
    alter table sandbox_envs drop column plain_envs;
    alter table sandbox_envs alter column envs set not null;
  end if;
end $$;

-- The stored response of a request that creates a secret contains it.
alter table idempotency_keys
  add column key_id text generated always as (secret_key_id(answer)) stored references secret_keys;
create index idempotency_keys_secret on idempotency_keys (key_id) where key_id is not null;

-- The ids of the keys that a process has; it encrypts with the first.
alter table service_processes add column secret_keys text[] not null default '{}';

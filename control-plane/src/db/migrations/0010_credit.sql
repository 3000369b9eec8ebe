-- Credit: the ledger, and how far usage has been charged (credit/charge.ts).

-- The ledger. Every change of a balance is an entry, and entries are never changed.

alter table credit_entries
  add column kind text check (kind in ('grant', 'top_up', 'adjustment', 'bandwidth', 'usage')),
  -- The balance after this entry.
  add column balance_micro bigint,
  add column sandbox_id text references sandboxes,
  -- Given by the caller of a top-up, so that repeating it adds the credit once.
  add column reference text,
  -- Usage: the charged period of an interval, the prices in 10^-12 credits per second, and their exact product in
  -- 1 / 25,600,000,000,000,000 of a micro-credit (credit/price.ts).
  add column interval_id bigint references usage_intervals,
  add column period_start timestamptz,
  add column period_end timestamptz,
  add column vcpu_price bigint,
  add column mem_price bigint,
  add column disk_price bigint,
  add column units numeric;

-- Entries and balances have always been written together. A difference would be an error of an earlier version; the
-- balance that users have seen stays.
insert into credit_entries (user_id, amount_micro, reason)
select u.id, u.credit_micro - coalesce(e.sum, 0), 'correction at upgrade'
from users u left join (select user_id, sum(amount_micro) as sum from credit_entries group by user_id) e on e.user_id = u.id
where u.credit_micro <> coalesce(e.sum, 0);

update credit_entries e set
  kind = case when e.reason = 'new account' then 'grant'
    when e.reason like 'bandwidth of sb-%' then 'bandwidth'
    when e.amount_micro > 0 then 'top_up' else 'adjustment' end,
  sandbox_id = case when e.reason like 'bandwidth of sb-%' then substring(e.reason from 'sb-.*') end,
  balance_micro = running.balance
from (select id, sum(amount_micro) over (partition by user_id order by id) as balance from credit_entries) running
where running.id = e.id;

alter table credit_entries
  alter column kind set not null,
  alter column balance_micro set not null,
  add constraint usage_entry check (case when kind = 'usage'
    then sandbox_id is not null and interval_id is not null and amount_micro <= 0 and units >= 0
      and period_end > period_start and num_nonnulls(period_start, period_end, vcpu_price, mem_price, disk_price, units) = 6
    else num_nonnulls(interval_id, period_start, period_end, vcpu_price, mem_price, disk_price, units) = 0 end);

-- A period of an interval is charged once.
create unique index credit_entries_period on credit_entries (interval_id, period_start) where interval_id is not null;
create unique index credit_entries_reference on credit_entries (user_id, reference) where reference is not null;
create index credit_entries_sandbox on credit_entries (sandbox_id, id) where sandbox_id is not null;

alter table users
  -- The part of a micro-credit that was used but not charged yet, in the unit of credit_entries.units.
  add column credit_carry bigint not null default 0 check (credit_carry >= 0 and credit_carry < 25600000000000000),
  -- Lists need an exact total.
  add column credit_entry_count bigint not null default 0,
  -- When the owner was notified of low credit; null when there is enough.
  add column credit_low_at timestamptz;
-- Processes read balances as floating-point numbers, which are exact up to here.
alter table users add constraint credit_is_exact check (abs(credit_micro) <= 9007199254740991);
update users set credit_entry_count = (select count(*) from credit_entries where user_id = users.id);

-- The balance is the sum of the entries. Nothing else can change it.

create function add_credit_entries() returns trigger language plpgsql as $$
begin
  update users set credit_micro = credit_micro + added.amount, credit_entry_count = credit_entry_count + added.n
  from (select user_id, sum(amount_micro) as amount, count(*) as n from new_rows group by user_id) added
  where users.id = added.user_id;
  return null;
end $$;
create trigger add_credit_entries after insert on credit_entries
  referencing new table as new_rows for each statement execute function add_credit_entries();

create function refuse_change_of_balance() returns trigger language plpgsql as $$
begin
  -- 1 is this trigger alone, 2 is this trigger during add_credit_entries.
  if pg_trigger_depth() < 2 then
    raise exception 'users.credit_micro is the sum of credit_entries: insert an entry instead of changing it';
  end if;
  return new;
end $$;
create trigger refuse_change_of_balance before update of credit_micro on users
  for each row when (old.credit_micro is distinct from new.credit_micro) execute function refuse_change_of_balance();
create trigger refuse_initial_balance before insert on users
  for each row when (new.credit_micro <> 0) execute function refuse_change_of_balance();

create function refuse_change_of_ledger() returns trigger language plpgsql as $$
begin
  raise exception 'credit_entries is append-only: add an entry that corrects the other';
end $$;
create trigger refuse_change_of_ledger before update or delete or truncate on credit_entries
  for each statement execute function refuse_change_of_ledger();

-- Charges change the users' rows every minute. Only these columns matter to cached credentials; a notification for every
-- charge would empty all caches all the time.
drop trigger users_changed on users;
create trigger users_changed after update of name, external_id, plan, operator, limit_overrides on users
  for each statement execute function credentials_changed();

-- How far each interval has been charged. Usage before this migration is not charged.

alter table usage_intervals
  -- In percent of one core, as in the shape.
  add column cpu_pct integer,
  -- False on the plan `local`, which is never charged.
  add column billable boolean,
  add column charged_until timestamptz,
  -- The part before charged_until for which there is no entry: on a plan that is not charged, or before this migration.
  add column uncharged_us bigint not null default 0 check (uncharged_us >= 0),
  -- The interval has ended and is charged to its end.
  add column settled boolean not null default false;
update usage_intervals i set
  cpu_pct = case i.shape when 's-0.25vcpu-512mb' then 25 when 's-0.5vcpu-1gb' then 50 else s.vcpu * 100 end,
  charged_until = coalesce(i.ended_at, greatest(i.started_at, now())),
  uncharged_us = extract(epoch from coalesce(i.ended_at, greatest(i.started_at, now())) - i.started_at) * 1000000,
  settled = i.ended_at is not null,
  billable = u.plan <> 'local'
from sandboxes s, users u where s.id = i.sandbox_id and u.id = i.user_id;
alter table usage_intervals
  alter column cpu_pct set not null,
  alter column billable set not null,
  alter column charged_until set not null,
  add check (charged_until >= started_at and charged_until <= ended_at),
  add check (not settled or charged_until = ended_at);
create index usage_intervals_unsettled on usage_intervals (user_id, id) where not settled;

-- A sandbox that changes its size begins a new interval, whichever code changes it.
create function split_usage_interval() returns trigger language plpgsql as $$
declare old_interval usage_intervals;
begin
  update usage_intervals set ended_at = greatest(charged_until, now()), settled = (charged_until >= now())
  where sandbox_id = new.id and ended_at is null returning * into old_interval;
  if found then
    insert into usage_intervals
      (sandbox_id, user_id, kind, shape, cpu_pct, mem_mib, disk_mib, billable, started_at, charged_until)
    values (new.id, new.user_id, old_interval.kind, new.shape, old_interval.cpu_pct, new.mem_mib, new.disk_mib,
      old_interval.billable, old_interval.ended_at, old_interval.ended_at);
  end if;
  return null;
end $$;
create trigger split_usage_interval after update of disk_mib, mem_mib on sandboxes
  for each row when (old.disk_mib is distinct from new.disk_mib or old.mem_mib is distinct from new.mem_mib)
  execute function split_usage_interval();

-- Open intervals continue as new ones when the plan of their user begins or ceases to be charged.
create function align_usage_with_plan(changed_user text) returns void language sql as $$
  with closed as (
    update usage_intervals i set ended_at = greatest(i.charged_until, now()), settled = (i.charged_until >= now())
    from users u
    where u.id = changed_user and i.user_id = u.id and i.ended_at is null and i.billable <> (u.plan <> 'local')
    returning i.*)
  insert into usage_intervals
    (sandbox_id, user_id, kind, shape, cpu_pct, mem_mib, disk_mib, billable, started_at, charged_until)
  select sandbox_id, user_id, kind, shape, cpu_pct, mem_mib, disk_mib, not billable, ended_at, ended_at from closed
$$;
create function change_of_plan() returns trigger language plpgsql as $$
begin
  perform align_usage_with_plan(new.id);
  return null;
end $$;
create trigger change_of_plan after update of plan on users
  for each row when (old.plan is distinct from new.plan) execute function change_of_plan();

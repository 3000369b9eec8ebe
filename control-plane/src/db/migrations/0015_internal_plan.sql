-- The plan `internal` is for services of the installation, such as the deployment gateway. Like `local` it is not charged.

alter table users drop constraint users_plan_check,
  add constraint users_plan_check check (plan in ('local', 'internal', 'free', 'beginner', 'pro', 'enterprise'));

create function is_charged(plan text) returns boolean immutable language sql as $$
  select plan not in ('local', 'internal')
$$;

create or replace function align_usage_with_plan(changed_user text) returns void language sql as $$
  with closed as (
    update usage_intervals i set ended_at = greatest(i.charged_until, now()), settled = (i.charged_until >= now())
    from users u
    where u.id = changed_user and i.user_id = u.id and i.ended_at is null and i.billable <> is_charged(u.plan)
    returning i.*)
  insert into usage_intervals
    (sandbox_id, user_id, kind, shape, cpu_pct, mem_mib, disk_mib, billable, started_at, charged_until)
  select sandbox_id, user_id, kind, shape, cpu_pct, mem_mib, disk_mib, not billable, ended_at, ended_at from closed
$$;

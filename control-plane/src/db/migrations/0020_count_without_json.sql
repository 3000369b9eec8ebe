-- The number of sandboxes of each status per user (migration 0001) is counted in one statement, without a detour through JSON:
-- each move of a sandbox runs it. A statement that changes neither the status nor the user locks no row of counts.

create or replace function count_new_sandboxes() returns trigger language plpgsql as $$
begin
  insert into sandbox_counts as c
    (user_id, creating, running, pausing, paused, resuming, forking, error, destroying, destroyed, failed)
  select user_id,
    count(*) filter (where status = 'creating'), count(*) filter (where status = 'running'),
    count(*) filter (where status = 'pausing'), count(*) filter (where status = 'paused'),
    count(*) filter (where status = 'resuming'), count(*) filter (where status = 'forking'),
    count(*) filter (where status = 'error'), count(*) filter (where status = 'destroying'),
    count(*) filter (where status = 'destroyed'), count(*) filter (where status = 'failed')
  from new_rows
  group by user_id
  -- The same order everywhere, so that two statements over several users cannot deadlock.
  order by user_id
  on conflict (user_id) do update set
    creating = c.creating + excluded.creating, running = c.running + excluded.running,
    pausing = c.pausing + excluded.pausing, paused = c.paused + excluded.paused,
    resuming = c.resuming + excluded.resuming, forking = c.forking + excluded.forking,
    error = c.error + excluded.error, destroying = c.destroying + excluded.destroying,
    destroyed = c.destroyed + excluded.destroyed, failed = c.failed + excluded.failed;
  return null;
end $$;

create or replace function count_moved_sandboxes() returns trigger language plpgsql as $$
begin
  insert into sandbox_counts as c
    (user_id, creating, running, pausing, paused, resuming, forking, error, destroying, destroyed, failed)
  select user_id,
    coalesce(sum(n) filter (where status = 'creating'), 0), coalesce(sum(n) filter (where status = 'running'), 0),
    coalesce(sum(n) filter (where status = 'pausing'), 0), coalesce(sum(n) filter (where status = 'paused'), 0),
    coalesce(sum(n) filter (where status = 'resuming'), 0), coalesce(sum(n) filter (where status = 'forking'), 0),
    coalesce(sum(n) filter (where status = 'error'), 0), coalesce(sum(n) filter (where status = 'destroying'), 0),
    coalesce(sum(n) filter (where status = 'destroyed'), 0), coalesce(sum(n) filter (where status = 'failed'), 0)
  from (
    select change.user_id, change.status, change.n
    from old_rows before join new_rows after using (id)
      cross join lateral (values (before.user_id, before.status, -1), (after.user_id, after.status, 1)) change (user_id, status, n)
    where before.status <> after.status or before.user_id <> after.user_id
  ) changes
  group by user_id
  order by user_id
  on conflict (user_id) do update set
    creating = c.creating + excluded.creating, running = c.running + excluded.running,
    pausing = c.pausing + excluded.pausing, paused = c.paused + excluded.paused,
    resuming = c.resuming + excluded.resuming, forking = c.forking + excluded.forking,
    error = c.error + excluded.error, destroying = c.destroying + excluded.destroying,
    destroyed = c.destroyed + excluded.destroyed, failed = c.failed + excluded.failed;
  return null;
end $$;

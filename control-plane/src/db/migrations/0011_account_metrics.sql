-- Account metrics (metrics/). No index here has an entry for a sandbox that is being created.

-- Bytes per sandbox and hour, written together with the totals of the sandbox (bandwidth/record-counts.ts).
create table bandwidth_hours (
  user_id text not null references users,
  -- Begins at a full hour, UTC.
  hour timestamptz not null,
  sandbox_id text not null references sandboxes,
  egress_bytes bigint not null,
  ingress_bytes bigint not null,
  -- When the first and the last of these bytes were recorded.
  first_at timestamptz not null,
  last_at timestamptz not null check (last_at >= first_at),
  primary key (user_id, hour, sandbox_id)
  -- Most updates then change a row within its page and no index.
) with (fillfactor = 70);
create index bandwidth_hours_age on bandwidth_hours (hour);

-- Sandboxes that were deleted in a window, with their lifetime. A failed create that is deleted afterwards never lived.
create index sandboxes_destroyed on sandboxes (user_id, destroyed_at) include (created_at)
  where destroyed_at is not null and (running_at is not null or paused_at is not null);

-- Intervals that have ended and overlap a window (metrics/overlapping-intervals.ts), in classes of similar length. Of a class
-- whose intervals are shorter than L, the ones that overlap have started after `from` - L and before `to`, which is one
-- range of this index. A column and not an expression, because the planner has statistics of columns: without them it
-- expects many rows in classes that are empty.
alter table usage_intervals add column length_class integer generated always as (
  width_bucket(extract(epoch from ended_at - started_at),
    array[60, 240, 960, 3840, 15360, 61440, 245760, 983040, 3932160, 15728640, 62914560]::numeric[])) stored;
create index usage_intervals_ended on usage_intervals (user_id, length_class, started_at) where ended_at is not null;
drop index usage_intervals_user;

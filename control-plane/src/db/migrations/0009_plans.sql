-- Limits that an operator has set for one user, by name (users/plans.ts). Null means no limit; an absent name means that
-- of the plan.
alter table users add column limit_overrides jsonb not null default '{}'
  check (jsonb_typeof(limit_overrides) = 'object');

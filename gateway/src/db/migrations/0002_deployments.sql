-- What carries deployments out: claims, sandboxes, logs, and the deployment that a project serves.

alter table gateway.deployments
  -- Where the app listens; known once the project was examined.
  add column port integer,
  -- How the app is started, as deployments/plan.ts says.
  add column run jsonb,
  add column image text,
  -- The process that works on it, or supervises its app, until the time it last said. Another one takes over then.
  add column claimed_by text,
  add column claimed_until timestamptz,
  -- Raised with each claim. What an earlier attempt left is removed.
  add column attempt integer not null default 0,
  -- When the first attempt began. Build and start have a common time limit.
  add column started_at timestamptz,
  add column ready_at timestamptz;
create index deployments_unfinished on gateway.deployments (created_at)
  where status in ('queued', 'pending', 'building', 'deploying', 'promoting');

alter table gateway.projects
  -- The deployment whose app is reached under the URL.
  add column live_deployment_id uuid references gateway.deployments;
create index projects_live on gateway.projects (live_deployment_id) where deleted_at is null;

-- Every sandbox, from before its creation until after its deletion, so that none is forgotten.
create table gateway.sandboxes (
  -- Names the project, the role, the deployment and the attempt. Unique in the account of the gateway.
  name text primary key,
  -- Null until the create was answered.
  sandbox_id text,
  project_id uuid not null references gateway.projects,
  deployment_id uuid not null references gateway.deployments,
  role text not null check (role in ('build', 'run')),
  attempt integer not null,
  -- The process in it that is the app.
  process_id text,
  -- The last event of its output that is in the log.
  output_seq bigint not null default 0,
  -- Paused because the wallet has no credit.
  is_paused boolean not null default false,
  -- Set when another deployment took over: until then, requests that it has begun may finish.
  drain_until timestamptz,
  created_at timestamptz not null default now()
);
create index sandboxes_deployment on gateway.sandboxes (deployment_id);
create index sandboxes_project on gateway.sandboxes (project_id);

-- Output of builds and apps, with secrets masked. The oldest lines of a deployment are deleted beyond a limit.
create table gateway.log_lines (
  deployment_id uuid not null references gateway.deployments,
  seq bigint not null,
  at timestamptz not null,
  -- gateway: what the gateway does; build; app.
  source text not null check (source in ('gateway', 'build', 'app')),
  stream text not null check (stream in ('stdout', 'stderr')),
  text text not null,
  primary key (deployment_id, seq)
);

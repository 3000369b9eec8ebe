-- One-time tickets for the shell as a WebSocket (guest/shell-tickets.ts).

create table shell_tickets (
  hash bytea primary key,
  sandbox_id text not null references sandboxes,
  user_id text not null references users,
  -- Set if a sandbox access token created the ticket: it ends with the token.
  token_hash bytea,
  -- Of the credential that created the ticket, for the audit log.
  hint text not null,
  expires_at timestamptz not null
);
create index shell_tickets_expiry on shell_tickets (expires_at);

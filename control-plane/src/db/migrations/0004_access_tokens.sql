-- Deletes the access token of a sandbox that has ended, whichever move ended it. The trigger on access_tokens
-- (0001_house.sql) notifies every process.

create function void_access_token() returns trigger language plpgsql as $$
begin
  delete from access_tokens where sandbox_id = new.id;
  return null;
end $$;

create trigger void_access_token after update of status on sandboxes
  for each row when (new.status in ('destroyed', 'failed')) execute function void_access_token();

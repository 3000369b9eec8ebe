-- A sandbox that has ended takes its access token with it, whatever move ended it. The delete tells every process to
-- forget the token (migration 0001).

create function void_access_token() returns trigger language plpgsql as $$
begin
  delete from access_tokens where sandbox_id = new.id;
  return null;
end $$;

create trigger void_access_token after update of status on sandboxes
  for each row when (new.status in ('destroyed', 'failed')) execute function void_access_token();

-- What the last pause of the sandbox could not save in the bucket, as the host reported it: MountUnsaved of the protocol, or `{}` if
-- the guest did not say. Null if everything was saved, and again when the sandbox resumes.
alter table disk_attachments add column unsaved jsonb;

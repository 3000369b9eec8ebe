//! An agent whose mount programs are scripts.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use guest_agent::mounts::{MountProgramFile, ProgramFile, Stages};

use super::{Host, Scratch, start_agent_at};

/// A script that answers every command, and writes what it reads to a log.
pub const OBEDIENT: &str = r#"#!/bin/sh
echo '{"event":"status","status":{"dirty_files":1}}'
while read -r line; do
  echo "$line" >> LOG
  id=${line##*'"id":'}
  case $line in
    *'"do"'*) echo "{\"id\":${id%%[!0-9]*},\"ok\":true,\"status\":{\"dirty_files\":0}}" ;;
  esac
  case $line in *'"discard"'* | *'"unmount"'*) exit 0 ;; esac
done
"#;

/// In a private mount namespace, which the threads and programs of the agent inherit.
pub fn start_agent() -> Host {
    start_agent_with(Path::new("/"))
}

pub fn start_agent_with(root: &Path) -> Host {
    // SAFETY: plain system calls. Only this thread gets the namespace.
    unsafe {
        assert_eq!(libc::unshare(libc::CLONE_NEWNS), 0);
        let flags = libc::MS_REC | libc::MS_PRIVATE;
        let none = std::ptr::null();
        assert_eq!(libc::mount(none, c"/".as_ptr(), none, flags, none.cast()), 0);
    }
    start_agent_at(root.into())
}

pub fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

pub fn use_program(host: &Host, scratch: &Scratch, script: &str) {
    let program = scratch.path("program");
    fs::write(&program, script.replace("LOG", scratch.path("log").to_str().unwrap())).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    host.agent
        .mounts
        .set_program(MountProgramFile { file: ProgramFile::Path(program), stages: Stages::at(scratch.path("stages")) });
}

pub fn log(scratch: &Scratch) -> String {
    fs::read_to_string(scratch.path("log")).unwrap_or_default()
}

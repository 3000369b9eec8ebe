#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
//! Conflicts with others that are noticed while a file is still open. Both versions stay whole.

mod support;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;

use serde_json::{Value, json};
use support::http::Response;
use support::mounted::Mounted;
use support::server::{Effect, Server};
use support::until;

const STALE: Option<i32> = Some(libc::ESTALE);

fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

/// As close(2), whose error `File` ignores.
fn close(file: File) -> Option<i32> {
    use std::os::fd::IntoRawFd;
    // SAFETY: the descriptor is this function's own.
    let result = unsafe { libc::close(file.into_raw_fd()) };
    errno(if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) })
}

fn open(mounted: &Mounted) -> File {
    OpenOptions::new().read(true).write(true).open(mounted.file("f")).unwrap()
}

/// A file with changes that a pause cannot save, because another sandbox has replaced it.
fn conflict_at_a_pause(server: &Server, mounted: &mut Mounted) -> (File, Value) {
    server.bucket().put("f", b"first version");
    let file = open(mounted);
    file.write_all_at(b"MINE", 0).unwrap();
    server.bucket().put("f", b"their version");
    let answer = mounted.command(json!({"do": "flush", "deadline_ms": 20_000}));
    (file, answer)
}

#[test]
fn after_a_conflict_at_a_pause_a_program_cannot_write_into_the_other_version() {
    let server = Server::start();
    let mut mounted = Mounted::start(&server);
    let (file, flushed) = conflict_at_a_pause(&server, &mut mounted);

    let written = errno(file.write_all_at(b"MORE", 4));
    let truncated = errno(file.set_len(2));
    let synced = errno(file.sync_all());
    let closed = close(file);

    assert_eq!((&flushed["ok"], &flushed["status"]["conflicts_total"]), (&json!(false), &json!(1)), "{flushed}");
    assert_eq!([written, truncated, synced, closed], [STALE; 4]);
    assert_eq!(server.body("f").unwrap(), b"their version");
    let kept = flushed["status"]["problems"][0]["kept"].as_str().unwrap().to_owned();
    assert!(fs::read(kept).unwrap().starts_with(b"MINE"));
}

#[test]
fn after_the_last_close_the_other_version_can_be_changed() {
    let server = Server::start();
    let mut mounted = Mounted::start(&server);
    let (first, _) = conflict_at_a_pause(&server, &mut mounted);
    let second = first.try_clone().unwrap();

    assert_eq!(close(first), STALE);
    assert_eq!(errno(second.write_all_at(b"MORE", 0)), STALE, "a copy of the descriptor");
    assert_eq!(close(second), STALE);

    until("the kernel has released the file", || open(&mounted).write_all_at(b"OUR", 0).is_ok());
    until("the change", || server.body("f").unwrap() == b"OURir version");
}

#[test]
fn a_reader_that_keeps_the_file_open_does_not_prevent_new_changes() {
    let server = Server::start();
    let mut mounted = Mounted::start(&server);
    server.bucket().put("f", b"first version");
    let _reader = File::open(mounted.file("f")).unwrap();
    let (file, _) = conflict_at_a_pause(&server, &mut mounted);

    assert_eq!(close(file), STALE);
    until("the kernel has released the file", || open(&mounted).write_all_at(b"OUR", 0).is_ok());
    until("the change", || server.body("f").unwrap() == b"OURir version");
}

#[test]
fn a_bucket_that_is_gone_for_a_moment_is_not_a_conflict() {
    let server = Server::start();
    server.bucket().put("f", b"first version");
    let mut mounted = Mounted::start(&server);
    let file = open(&mounted);
    file.write_all_at(b"MINE", 0).unwrap();
    // As a proxy or a server that does not know the bucket at the moment.
    server.set_fault(|_| Some(Effect::Answer(Response::new(404))));

    let failed = errno(file.sync_all());
    let status = mounted.status();
    server.clear_fault();
    let flushed = mounted.command(json!({"do": "flush", "deadline_ms": 20_000}));

    assert_eq!(failed, Some(libc::EIO));
    assert_eq!((&status["dirty_files"], &status["conflicts_total"]), (&json!(1), &json!(0)), "{status}");
    assert_eq!(flushed["ok"], true, "{flushed}");
    assert_eq!(server.body("f").unwrap(), b"MINEt version");
}

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
//! Renames of directories while files in them are being saved.

mod support;

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread::{self, JoinHandle};

use support::http::Response;
use support::mounted::Mounted;
use support::server::{Effect, Server};
use support::until;

#[test]
fn a_save_that_has_to_be_repeated_and_a_rename_of_the_directory_do_not_wait_for_each_other() {
    let server = Server::start();
    for key in ["other/", "d/first", "d/second"] {
        server.bucket().put(key, b"");
    }
    let mounted = Mounted::start(&server);
    let other = File::open(mounted.file("other")).unwrap();
    let open = |name: &str| OpenOptions::new().write(true).open(mounted.file(name)).unwrap();
    let (first, second, again) = (open("d/first"), open("d/second"), open("d/second"));
    let (save_first, fail_second) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let is_failed = AtomicBool::new(false);
    let (released_first, released_second) = (save_first.clone(), fail_second.clone());
    server.set_fault(move |request| match (request.method.as_str(), request.key.as_str()) {
        ("PUT", "d/first") => Some(Effect::Until(released_first.clone(), None)),
        ("PUT", "d/second") if !is_failed.swap(true, Ordering::SeqCst) => {
            Some(Effect::Until(released_second.clone(), Some(Response::error(403, "AccessDenied"))))
        }
        _ => None,
    });

    // The rename saves the first file, then waits for the save of the second, which has begun meanwhile. A second one
    // waits for its turn, and has something to do because the one before it fails.
    first.write_all_at(b"first", 0).unwrap();
    let (from, to) = (mounted.file("d"), mounted.file("e"));
    let rename = thread::spawn(move || fs::rename(from, to));
    until_logged(&server, "PUT d/first");
    second.write_all_at(b"second", 0).unwrap();
    let failing = close(second);
    until_logged(&server, "PUT d/second");
    let repeating = close(again);
    until_answering(&other, "1");
    save_first.store(true, Ordering::SeqCst);
    until("the save of the first file", || server.body("d/first").is_some_and(|body| body == b"first"));
    until_answering(&other, "2");
    fail_second.store(true, Ordering::SeqCst);

    until("the rename", || rename.is_finished());
    rename.join().unwrap().unwrap();
    until("the end of both saves", || failing.is_finished() && repeating.is_finished());
    assert_eq!(server.body("e/first").unwrap(), b"first");
    until("the save of the second file", || server.body("e/second").is_some_and(|body| body == b"second"));
    assert!(!server.keys().iter().any(|key| key.starts_with("d/")), "{:?}", server.keys());
}

fn until_logged(server: &Server, start: &str) {
    until(start, || server.take_log().iter().any(|line| line.starts_with(start)));
}

/// Closes a file in another thread, and returns when that thread waits in the system call.
fn close(file: File) -> JoinHandle<()> {
    let thread_id = Arc::new(AtomicI32::new(0));
    let theirs = thread_id.clone();
    let closing = thread::spawn(move || {
        // SAFETY: no arguments.
        theirs.store(unsafe { libc::gettid() }, Ordering::SeqCst);
        drop(file);
    });
    let call = format!("{} ", libc::SYS_close);
    until("the wait in close", || {
        let path = format!("/proc/self/task/{}/syscall", thread_id.load(Ordering::SeqCst));
        fs::read_to_string(path).is_ok_and(|text| text.starts_with(&call))
    });
    closing
}

/// The program reads its requests in order: once it answers a new one, it has begun with those before.
fn until_answering(directory: &File, new_name: &str) {
    let path = format!("/proc/self/fd/{}/{new_name}", directory.as_raw_fd());
    assert!(fs::metadata(path).is_err());
}

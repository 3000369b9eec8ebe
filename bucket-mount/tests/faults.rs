#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
//! Servers that fail, conflicts with others, and programs that are killed.

mod support;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;
use support::http::Response;
use support::mounted::{Folder, Mounted, names};
use support::server::{Effect, Server};
use support::until;

#[test]
fn a_conflicting_change_is_an_error_and_keeps_both_versions() {
    let server = Server::start();
    server.bucket().put("f", b"first");
    let mut mounted = Mounted::start(&server);
    let file = OpenOptions::new().write(true).open(mounted.file("f")).unwrap();
    file.write_all_at(b"mine", 0).unwrap();

    server.bucket().put("f", b"theirs");
    let error = file.sync_all().unwrap_err();

    assert_eq!(error.raw_os_error(), Some(libc::ESTALE));
    assert_eq!(server.body("f").unwrap(), b"theirs");
    let problem = mounted.status()["problems"][0].clone();
    assert_eq!(problem["path"], "f");
    let kept = fs::read_to_string(problem["kept"].as_str().unwrap()).unwrap();
    assert!(kept.starts_with("mine"), "{kept}");
    drop(file);
    assert_eq!(fs::read_to_string(mounted.file("f")).unwrap(), "theirs");
}

#[test]
fn a_new_file_does_not_replace_one_that_another_created_meanwhile() {
    let server = Server::start();
    let mounted = Mounted::start(&server);
    let mut file = File::create(mounted.file("f")).unwrap();
    file.write_all(b"mine").unwrap();

    server.bucket().put("f", b"theirs");

    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(libc::ESTALE));
    assert_eq!(server.body("f").unwrap(), b"theirs");
}

#[test]
fn a_server_that_ignores_conditions_is_recognised() {
    let server = Server::start();
    server.bucket().ignores_conditions = true;
    let mut mounted = Mounted::start(&server);

    assert_eq!(mounted.status()["conditions"], "ignored");
    fs::write(mounted.file("f"), "x").unwrap();
    fs::write(mounted.file("f"), "y").unwrap();
    assert_eq!(server.body("f").unwrap(), b"y");
}

#[test]
fn a_write_whose_answer_was_lost_is_not_taken_for_a_conflict() {
    let server = Server::start();
    let mounted = Mounted::start(&server);
    let is_first = std::sync::atomic::AtomicBool::new(true);
    server.set_fault(move |request| {
        let is_write = request.method == "PUT" && request.key == "f";
        (is_write && is_first.swap(false, std::sync::atomic::Ordering::SeqCst)).then_some(Effect::CloseAfter)
    });

    fs::write(mounted.file("f"), "content").unwrap();

    assert_eq!(server.body("f").unwrap(), b"content");
}

#[test]
fn errors_of_the_server_reach_the_program_and_the_data_is_saved_later() {
    let server = Server::start();
    let mut mounted = Mounted::start(&server);
    server.set_fault(|request| (request.method == "PUT").then(|| Effect::Answer(Response::error(403, "AccessDenied"))));
    let mut file = File::create(mounted.file("f")).unwrap();
    file.write_all(b"content").unwrap();

    let error = file.sync_all().unwrap_err();

    assert_eq!(error.raw_os_error(), Some(libc::EACCES));
    assert_eq!(mounted.status()["dirty_files"], 1);
    assert_eq!(fs::read_to_string(mounted.file("f")).unwrap(), "content", "read from the stage");
    server.clear_fault();
    let answer = mounted.command(json!({"do": "flush", "deadline_ms": 20_000}));
    assert_eq!(answer["ok"], true);
    assert_eq!(answer["status"]["problems"], json!([]));
    assert_eq!(server.body("f").unwrap(), b"content");
}

#[test]
fn a_server_that_fails_for_a_moment_is_asked_again() {
    let server = Server::start();
    server.bucket().put("f", b"content");
    let mounted = Mounted::start(&server);
    let left = std::sync::Mutex::new(2);
    server.set_fault(move |_| {
        let mut left = left.lock().unwrap();
        *left -= (*left).min(1);
        (*left > 0).then(|| Effect::Answer(Response::error(503, "SlowDown")))
    });

    assert_eq!(fs::read_to_string(mounted.file("f")).unwrap(), "content");
}

#[test]
fn a_server_that_does_not_answer_is_an_error_after_the_deadline() {
    let server = Server::start();
    server.bucket().put("f", b"content");
    let mounted = Mounted::start_with(&server, Folder::new(), json!({"answer_limit_ms": 300}));
    server.set_fault(|_| Some(Effect::Hang));

    let error = fs::read(mounted.file("f")).unwrap_err();

    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    server.clear_fault();
    assert_eq!(fs::read_to_string(mounted.file("f")).unwrap(), "content");
}

#[test]
fn a_killed_program_does_not_wait_for_the_server() {
    let server = Server::start();
    server.bucket().put("f", b"content");
    let mounted = Mounted::start(&server);
    server.set_fault(|_| Some(Effect::Hang));
    server.take_log();
    let mut child = Command::new("cat").arg(mounted.file("f")).spawn().unwrap();
    until("a request", || !server.take_log().is_empty());

    let started = Instant::now();
    child.kill().unwrap();
    child.wait().unwrap();

    assert!(started.elapsed() < Duration::from_secs(10), "the limit of a request is longer");
}

#[test]
fn changes_of_a_killed_mount_are_saved_by_the_next() {
    let server = Server::start();
    server.bucket().put("dir/old", b"0123456789");
    let mounted = Mounted::start(&server);
    // A test beside this one that starts a program closes copies of these files, which saves them.
    server.set_fault(|request| (request.method == "PUT").then(|| Effect::Answer(Response::error(403, "AccessDenied"))));
    let changed = OpenOptions::new().write(true).open(mounted.file("dir/old")).unwrap();
    changed.write_all_at(b"XX", 4).unwrap();
    let mut new = File::create(mounted.file("dir/new")).unwrap();
    new.write_all(b"new").unwrap();

    let folder = mounted.kill();
    assert_eq!(server.body("dir/old").unwrap(), b"0123456789");
    server.clear_fault();
    let mut mounted = Mounted::start_with(&server, folder, json!({}));

    let saved = mounted.command(json!({"do": "flush", "deadline_ms": 20_000}));
    assert_eq!(saved["ok"], true, "{saved}");
    assert_eq!(server.body("dir/old").unwrap(), b"0123XX6789");
    assert_eq!(server.body("dir/new").unwrap(), b"new");
    assert_eq!(names(&mounted.file("dir")), ["new", "old"]);
}

#[test]
fn a_fork_forgets_what_is_not_saved() {
    let server = Server::start();
    let mut mounted = Mounted::start(&server);
    let mut file = File::create(mounted.file("f")).unwrap();
    file.write_all(b"of the source").unwrap();

    let answer = mounted.command(json!({"do": "discard"}));

    assert_eq!(answer["status"]["dirty_files"], 0);
    drop(file);
    until("the unmount", || names(&mounted.path).is_empty());
    assert_eq!(server.body("f"), None);
    assert_eq!(names(&mounted.folder.0.join("stage")), ["kept", "lock"]);
}

#[test]
fn after_a_wake_requests_use_new_connections_and_changes_of_others_are_seen() {
    let server = Server::start();
    server.bucket().put("f", b"old");
    let mut mounted = Mounted::start(&server);
    let mut text = String::new();
    File::open(mounted.file("f")).unwrap().read_to_string(&mut text).unwrap();
    server.bucket().put("f", b"new one");

    assert_eq!(mounted.command(json!({"do": "wake"}))["ok"], true);

    until("the new version", || fs::read_to_string(mounted.file("f")).is_ok_and(|text| text == "new one"));
}

#[test]
fn a_read_only_mount_refuses_changes() {
    let server = Server::start();
    server.bucket().put("f", b"content");
    let mounted = Mounted::start_with(&server, Folder::new(), json!({"read_only": true}));

    assert_eq!(fs::read_to_string(mounted.file("f")).unwrap(), "content");
    let error = fs::write(mounted.file("g"), "x").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    assert_eq!(server.keys(), ["f"]);
}

#[test]
fn a_file_that_another_deleted_is_a_conflict() {
    let server = Server::start();
    server.bucket().put("f", b"first");
    let mut mounted = Mounted::start(&server);
    let file = OpenOptions::new().write(true).open(mounted.file("f")).unwrap();
    file.write_all_at(b"mine", 0).unwrap();
    server.bucket().objects.remove("f");
    server.set_fault(|request| {
        // As S3 does.
        let is_write = request.method == "PUT" && request.key == "f";
        is_write.then(|| Effect::Answer(Response::error(404, "NoSuchKey")))
    });

    let error = file.sync_all().unwrap_err();

    assert_eq!(error.raw_os_error(), Some(libc::ESTALE));
    let status = mounted.status();
    assert_eq!((&status["dirty_files"], &status["conflicts_total"]), (&json!(0), &json!(1)));
    let kept = fs::read_to_string(status["problems"][0]["kept"].as_str().unwrap()).unwrap();
    assert!(kept.starts_with("mine"), "{kept}");
}

#[test]
fn conflicts_of_files_with_long_names_are_kept_and_never_replaced() {
    let name = "あ".repeat(85);
    let server = Server::start();
    let mut folder = Folder::new();
    for (run, content) in ["one", "two"].into_iter().enumerate() {
        let mut mounted = Mounted::start_with(&server, folder, json!({"shown_stage_folder": "/shown"}));
        server.bucket().put(&name, b"first");
        let file = OpenOptions::new().write(true).open(mounted.file(&name)).unwrap();
        file.write_all_at(content.as_bytes(), 0).unwrap();
        server.bucket().put(&name, b"theirs");

        assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(libc::ESTALE));

        drop(file);
        let status = mounted.status();
        assert_eq!(status["conflicts_total"], run + 1);
        assert!(status["problems"][0]["kept"].as_str().unwrap().starts_with("/shown/kept/"), "{status}");
        folder = mounted.unmount();
    }
    let kept = folder.0.join("stage/kept");
    let mut found: Vec<String> = names(&kept).iter().map(|name| fs::read_to_string(kept.join(name)).unwrap()).collect();
    found.sort();
    assert_eq!(found.iter().map(|text| &text[..3]).collect::<Vec<_>>(), ["one", "two"]);
}

#[test]
fn the_root_can_be_entered_while_the_server_is_away() {
    let server = Server::start();
    let mounted = Mounted::start_with(&server, Folder::new(), json!({"answer_limit_ms": 2000}));
    let away = Instant::now();
    server.set_fault(|_| Some(Effect::Hang));

    // Longer than attributes are fresh.
    until("attributes have to be read again", || away.elapsed() > Duration::from_secs(12));
    let asked = Instant::now();
    let is_directory = fs::metadata(&mounted.path).unwrap().is_dir();

    assert!(is_directory && asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
}

#[test]
fn unsaved_files_are_named_in_the_status() {
    let server = Server::start();
    let mut mounted = Mounted::start(&server);
    server.set_fault(|request| (request.method == "PUT").then(|| Effect::Answer(Response::error(403, "AccessDenied"))));
    let files: Vec<File> = (0..10).map(|number| File::create(mounted.file(&format!("f{number}"))).unwrap()).collect();
    for mut file in &files {
        file.write_all(b"content").unwrap();
    }

    let status = mounted.command(json!({"do": "flush", "deadline_ms": 1000}))["status"].clone();

    assert_eq!((&status["dirty_files"], &status["dirty_bytes"]), (&json!(10), &json!(70)));
    assert_eq!(status["dirty_names"], json!(["f0", "f1", "f2", "f3", "f4", "f5", "f6", "f7"]));
    server.clear_fault();
}

#[test]
fn a_deleted_file_that_was_still_open_does_not_come_back_after_a_crash() {
    let server = Server::start();
    server.bucket().put("saved", b"content");
    let mounted = Mounted::start(&server);
    let new = File::create(mounted.file("new")).unwrap();
    let replaced = File::create(mounted.file("replaced")).unwrap();
    let saved = OpenOptions::new().write(true).open(mounted.file("saved")).unwrap();
    for mut file in [&new, &replaced, &saved] {
        file.write_all(b"changes").unwrap();
    }
    fs::write(mounted.file("other"), "other").unwrap();
    fs::remove_file(mounted.file("new")).unwrap();
    fs::remove_file(mounted.file("saved")).unwrap();
    fs::rename(mounted.file("other"), mounted.file("replaced")).unwrap();

    // The guest agent counts logs: each is a file that is not saved.
    let staged = names(&mounted.folder.0.join("stage"));
    assert!(!staged.iter().any(|name| name.ends_with(".log")), "{staged:?}");
    let folder = mounted.kill();
    let mut mounted = Mounted::start_with(&server, folder, json!({}));
    let answer = mounted.command(json!({"do": "flush", "deadline_ms": 20_000}));

    assert_eq!((&answer["ok"], &answer["status"]["conflicts_total"]), (&json!(true), &json!(0)), "{answer}");
    assert_eq!(names(&mounted.path), ["replaced"]);
    assert_eq!(server.body("replaced").unwrap(), b"other");
}

#[test]
fn a_huge_object_that_claims_to_be_a_link_is_refused() {
    let server = Server::start();
    let mounted = Mounted::start(&server);
    std::os::unix::fs::symlink("target", mounted.file("link")).unwrap();
    {
        let mut bucket = server.bucket();
        let mut object = bucket.objects.get("link").unwrap().clone();
        object.body = vec![b'x'; 64 << 20];
        object.etag = "0".repeat(32);
        bucket.objects.insert("link".to_owned(), object);
    }
    let folder = mounted.kill();
    let mounted = Mounted::start_with(&server, folder, json!({}));

    let error = fs::read_link(mounted.file("link")).unwrap_err();

    assert_eq!(error.raw_os_error(), Some(libc::ENAMETOOLONG));
}

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
//! What programs do with files, directories and links on a mount.

mod support;

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};

use support::mounted::{Mounted, names};
use support::server::Server;

#[test]
fn a_closed_file_is_in_the_bucket_and_a_new_mount_reads_it() {
    let server = Server::start();
    let mounted = Mounted::start(&server);

    fs::write(mounted.file("hello.txt"), "hello").unwrap();

    assert_eq!(server.body("hello.txt").as_deref(), Some(b"hello".as_slice()));
    let folder = mounted.unmount();
    let mounted = Mounted::start_with(&server, folder, serde_json::json!({}));
    assert_eq!(fs::read_to_string(mounted.file("hello.txt")).unwrap(), "hello");
    assert_eq!(names(&mounted.path), ["hello.txt"]);
}

#[test]
fn files_are_appended_overwritten_and_truncated() {
    let server = Server::start();
    server.bucket().put("f", b"0123456789");
    let mounted = Mounted::start(&server);
    let path = mounted.file("f");

    OpenOptions::new().append(true).open(&path).unwrap().write_all(b"ab").unwrap();
    assert_eq!(server.body("f").unwrap(), b"0123456789ab");
    OpenOptions::new().write(true).open(&path).unwrap().write_all_at(b"XY", 3).unwrap();
    assert_eq!(server.body("f").unwrap(), b"012XY56789ab");
    OpenOptions::new().write(true).open(&path).unwrap().set_len(4).unwrap();
    assert_eq!(server.body("f").unwrap(), b"012X");
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(6).unwrap();
    file.sync_all().unwrap();
    assert_eq!(server.body("f").unwrap(), b"012X\0\0");
    fs::write(&path, "new").unwrap();
    assert_eq!(server.body("f").unwrap(), b"new");
    nix_truncate(&path, 1);
    assert_eq!(server.body("f").unwrap(), b"n");
}

fn nix_truncate(path: &std::path::Path, size: i64) {
    let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    assert_eq!(unsafe { libc::truncate(path.as_ptr(), size) }, 0);
}

#[test]
fn exclusive_creation_fails_if_the_file_exists() {
    let server = Server::start();
    let mounted = Mounted::start(&server);
    let create = || OpenOptions::new().write(true).create_new(true).open(mounted.file("lock"));

    let first = create().unwrap();

    assert_eq!(server.body("lock").as_deref(), Some(b"".as_slice()), "decided before the file is closed");
    assert_eq!(create().unwrap_err().kind(), ErrorKind::AlreadyExists);
    drop(first);
    server.bucket().put("other", b"x");
    let second = OpenOptions::new().write(true).create_new(true).open(mounted.file("other"));
    assert_eq!(second.unwrap_err().kind(), ErrorKind::AlreadyExists);
}

#[test]
fn a_file_is_removed_while_it_is_open() {
    let server = Server::start();
    server.bucket().put("f", b"content");
    let mounted = Mounted::start(&server);
    let mut file = OpenOptions::new().read(true).write(true).open(mounted.file("f")).unwrap();

    fs::remove_file(mounted.file("f")).unwrap();

    assert!(!server.keys().contains(&"f".to_owned()));
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "content");
    file.seek(SeekFrom::Start(0)).unwrap();
    file.write_all(b"more").unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    drop(file);
    assert!(!mounted.file("f").exists());
    assert!(!server.keys().contains(&"f".to_owned()));
}

#[test]
fn a_new_file_that_is_removed_before_it_is_closed_never_reaches_the_bucket() {
    let server = Server::start();
    let mounted = Mounted::start(&server);
    let mut file = File::create(mounted.file("temporary")).unwrap();

    fs::remove_file(mounted.file("temporary")).unwrap();
    file.write_all(b"x").unwrap();
    drop(file);

    assert!(!server.keys().contains(&"temporary".to_owned()));
}

#[test]
fn directories_are_kept_when_they_are_empty() {
    let server = Server::start();
    server.bucket().put("implicit/only", b"x");
    let mounted = Mounted::start(&server);

    fs::create_dir(mounted.file("made")).unwrap();
    fs::remove_file(mounted.file("implicit/only")).unwrap();

    let folder = mounted.unmount();
    let mounted = Mounted::start_with(&server, folder, serde_json::json!({}));
    assert_eq!(names(&mounted.path), ["implicit", "made"]);
    assert_eq!(fs::create_dir(mounted.file("made")).unwrap_err().kind(), ErrorKind::AlreadyExists);
    fs::write(mounted.file("made/f"), "x").unwrap();
    assert_eq!(fs::remove_dir(mounted.file("made")).unwrap_err().kind(), ErrorKind::DirectoryNotEmpty);
    fs::remove_file(mounted.file("made/f")).unwrap();
    fs::remove_dir(mounted.file("made")).unwrap();
    assert_eq!(names(&mounted.path), ["implicit"]);
}

#[test]
fn attributes_and_links_survive_a_new_mount() {
    let server = Server::start();
    let mounted = Mounted::start(&server);
    let script = mounted.file("run.sh");
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o750).open(&script).unwrap();
    fs::write(&script, "#!/bin/sh").unwrap();
    let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_234_567_890, 123_456_789);
    File::options().write(true).open(&script).unwrap().set_modified(time).unwrap();
    std::os::unix::fs::chown(&script, Some(1000), Some(1001)).unwrap();
    symlink("run.sh", mounted.file("link")).unwrap();
    fs::create_dir(mounted.file("private")).unwrap();
    fs::set_permissions(mounted.file("private"), fs::Permissions::from_mode(0o700)).unwrap();

    let folder = mounted.unmount();
    let mounted = Mounted::start_with(&server, folder, serde_json::json!({}));

    let found = fs::metadata(mounted.file("run.sh")).unwrap();
    assert_eq!((found.mode(), found.uid(), found.gid()), (0o100750, 1000, 1001));
    assert_eq!(found.modified().unwrap(), time);
    assert_eq!(fs::read_link(mounted.file("link")).unwrap().to_str(), Some("run.sh"));
    assert_eq!(fs::read_to_string(mounted.file("link")).unwrap(), "#!/bin/sh");
    assert_eq!(fs::metadata(mounted.file("private")).unwrap().mode(), 0o40700);
    let refused = fs::hard_link(mounted.file("run.sh"), mounted.file("hard")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
}

#[test]
fn files_are_renamed_over_others_and_into_directories() {
    let server = Server::start();
    let mounted = Mounted::start(&server);
    fs::create_dir(mounted.file("d")).unwrap();
    fs::write(mounted.file("a"), "a").unwrap();
    fs::write(mounted.file("b"), "b").unwrap();
    let mut open = File::open(mounted.file("b")).unwrap();

    fs::rename(mounted.file("a"), mounted.file("b")).unwrap();
    fs::rename(mounted.file("b"), mounted.file("d/c")).unwrap();

    assert_eq!(server.body("d/c").unwrap(), b"a");
    assert_eq!(names(&mounted.path), ["d"]);
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "b", "the replaced file is still readable");
    let mut unsaved = File::create(mounted.file("new")).unwrap();
    unsaved.write_all(b"late").unwrap();
    fs::rename(mounted.file("new"), mounted.file("d/renamed")).unwrap();
    drop(unsaved);
    assert_eq!(server.body("d/renamed").unwrap(), b"late");
    assert_eq!(server.body("new"), None);
}

#[test]
fn a_directory_is_renamed_with_everything_below_it() {
    let server = Server::start();
    let mounted = Mounted::start(&server);
    fs::create_dir_all(mounted.file("old/sub/empty")).unwrap();
    for number in 0..30 {
        fs::write(mounted.file(&format!("old/sub/{number}")), number.to_string()).unwrap();
    }
    let mut open = OpenOptions::new().append(true).open(mounted.file("old/sub/7")).unwrap();
    open.write_all(b"before").unwrap();

    fs::rename(mounted.file("old"), mounted.file("new")).unwrap();
    open.write_all(b" after").unwrap();
    drop(open);

    assert_eq!(server.body("new/sub/7").unwrap(), b"7before after");
    assert_eq!(names(&mounted.path), ["new"]);
    assert_eq!(names(&mounted.file("new/sub")).len(), 31);
    assert_eq!(fs::read_to_string(mounted.file("new/sub/29")).unwrap(), "29");
    assert!(server.keys().iter().all(|key| !key.starts_with("old")), "{:?}", server.keys());
    fs::create_dir(mounted.file("full")).unwrap();
    fs::write(mounted.file("full/f"), "x").unwrap();
    let refused = fs::rename(mounted.file("new"), mounted.file("full")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::DirectoryNotEmpty);
}

#[test]
fn names_of_all_kinds_are_listed_and_read() {
    let server = Server::start();
    let mounted = Mounted::start(&server);
    let wanted = ["a b", "ü€𝄞", "x+y%20&=?#", "-dash", "new\nline", "~tilde"];

    for name in wanted {
        fs::write(mounted.file(name), name).unwrap();
    }

    let mut sorted: Vec<String> = wanted.iter().map(|name| name.to_string()).collect();
    sorted.sort();
    assert_eq!(names(&mounted.path), sorted);
    for name in wanted {
        assert_eq!(fs::read_to_string(mounted.file(name)).unwrap(), name);
    }
    let long = fs::write(mounted.file(&"x".repeat(256)), "").unwrap_err();
    assert_eq!(long.raw_os_error(), Some(libc::ENAMETOOLONG));
}

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
//! The disk of the guest, on which changes are staged, is full.

mod support;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::json;
use support::http::Response;
use support::mounted::{Folder, Mounted};
use support::server::{Effect, Server};

const MIB: usize = 1 << 20;

/// A file system of a few MiB as the stage folder.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(folder: &Folder, mib: usize) -> Self {
        let path = folder.0.join("stage");
        fs::create_dir(&path).unwrap();
        let size = format!("size={mib}m");
        assert!(
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&path).status().unwrap().success()
        );
        Self(path)
    }

    /// Returns the file that takes all of it.
    fn fill(&self) -> PathBuf {
        let path = self.0.join("filler");
        let mut file = File::create(&path).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).stderr(Stdio::null()).status();
        // The folder around it, which could not be removed before.
        let _ = self.0.parent().map(fs::remove_dir_all);
    }
}

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index / 4096 + index) as u8).collect()
}

fn is_same(path: &Path, expected: &[u8]) -> bool {
    let mut found = Vec::new();
    File::open(path).unwrap().read_to_end(&mut found).unwrap();
    found == expected
}

#[test]
fn a_file_that_is_larger_than_the_disk_is_saved_while_it_is_written() {
    let server = Server::start();
    let folder = Folder::new();
    let _disk = SmallDisk::mount(&folder, 40);
    let mounted = Mounted::start_with(&server, folder, json!({}));
    let content = content(72 * MIB);

    let mut file = File::create(mounted.file("large")).unwrap();
    file.write_all(&content).unwrap();
    file.sync_all().unwrap();
    drop(file);

    assert!(server.body("large").unwrap() == content);
    assert!(is_same(&mounted.file("large"), &content));
}

#[test]
fn changes_on_a_full_disk_fail_and_later_ones_survive_a_crash() {
    let server = Server::start();
    let folder = Folder::new();
    let disk = SmallDisk::mount(&folder, 40);
    let mut mounted = Mounted::start_with(&server, folder, json!({}));
    server.set_fault(|request| (request.method == "PUT").then(|| Effect::Answer(Response::error(403, "AccessDenied"))));
    let mut file = File::create(mounted.file("f")).unwrap();
    file.write_all(b"before ").unwrap();
    let filler = disk.fill();
    // These need room for their records only, the last of which is cut off at the end of a page.
    let failed = (0..1000).find_map(|_| file.write_at(b"B", 0).err());
    let new = OpenOptions::new().create_new(true).write(true).open(mounted.file("new"));
    drop(new);

    fs::remove_file(filler).unwrap();
    file.write_all(b" after").unwrap();
    let numbers = support::mounted::names(&disk.0);
    let folder = mounted.kill();
    server.clear_fault();
    mounted = Mounted::start_with(&server, folder, json!({}));
    let answer = mounted.command(json!({"do": "flush", "deadline_ms": 20_000}));

    assert!(failed.is_some());
    assert_eq!(answer["ok"], true, "{answer}");
    let body = server.body("f").unwrap();
    assert_eq!(String::from_utf8_lossy(&body), "Before  after");
    assert!(numbers.len() <= 6, "{numbers:?}");
    drop(mounted);
}

#[test]
fn a_conflict_that_is_noticed_on_a_full_disk_is_an_error_of_the_write() {
    let server = Server::start();
    server.bucket().put("f", &content(20 * MIB));
    let folder = Folder::new();
    let _disk = SmallDisk::mount(&folder, 40);
    let mounted = Mounted::start_with(&server, folder, json!({}));
    let file = OpenOptions::new().write(true).open(mounted.file("f")).unwrap();
    file.write_all_at(b"mine", 0).unwrap();
    server.bucket().put("f", b"theirs");

    let written = (1..60).find_map(|number| file.write_all_at(&vec![7; MIB], (number * MIB) as u64).err());
    let after = file.write_all_at(b"more", 0).unwrap_err();

    assert_eq!(written.and_then(|error| error.raw_os_error()), Some(libc::ESTALE));
    assert_eq!(after.raw_os_error(), Some(libc::ESTALE));
    drop(file);
    assert_eq!(server.body("f").unwrap(), b"theirs");
}

#[test]
fn small_writes_on_a_nearly_full_disk_are_saved_together() {
    let server = Server::start();
    let folder = Folder::new();
    let disk = SmallDisk::mount(&folder, 40);
    let mounted = Mounted::start_with(&server, folder, json!({}));
    fs::write(disk.0.join("filler"), content(30 * MIB)).unwrap();
    server.take_log();

    let mut file = File::create(mounted.file("f")).unwrap();
    for number in 0..50 {
        file.write_all(&[number; 1000]).unwrap();
    }
    file.sync_all().unwrap();

    let log = server.take_log();
    let saves = log.iter().filter(|line| line.starts_with("PUT f ")).count();
    assert_eq!(saves, 1, "{log:?}");
    assert_eq!(server.body("f").unwrap().len(), 50_000);
}

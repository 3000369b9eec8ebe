#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
//! Large files and directories, and how much is transferred for them.

mod support;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;

use serde_json::json;
use support::mounted::{Folder, Mounted, names};
use support::server::Server;

const MIB: usize = 1 << 20;

/// Bytes that differ everywhere.
fn pattern(size: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        bytes.extend((state >> 16).to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}

#[test]
fn a_large_file_is_written_in_parts_and_read_back() {
    let server = Server::start();
    let mounted = Mounted::start(&server);
    let data = pattern(37 * MIB + 123, 7);

    File::create(mounted.file("large")).unwrap().write_all(&data).unwrap();

    assert!(server.body("large").unwrap() == data);
    assert!(server.bucket().uploads.is_empty());
    let folder = mounted.unmount();
    let mounted = Mounted::start_with(&server, folder, json!({}));
    assert!(fs::read(mounted.file("large")).unwrap() == data);
    let mut some = vec![0; 5000];
    File::open(mounted.file("large")).unwrap().read_exact_at(&mut some, 20_000_001).unwrap();
    assert!(some == data[20_000_001..20_005_001]);
}

#[test]
fn a_small_change_of_a_large_object_transfers_only_the_part_that_contains_it() {
    let server = Server::start();
    let mut data = pattern(100 * MIB, 3);
    server.bucket().put("large", &data);
    let mounted = Mounted::start(&server);
    let file = OpenOptions::new().write(true).read(true).open(mounted.file("large")).unwrap();
    server.take_log();

    file.write_all_at(b"changed", 50_000_000).unwrap();
    file.sync_all().unwrap();

    data[50_000_000..50_000_007].copy_from_slice(b"changed");
    assert!(server.body("large").unwrap() == data);
    let log = server.take_log();
    let copies = log.iter().filter(|line| line.ends_with(" copy")).count();
    let sent: usize = log.iter().filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok()).sum();
    assert_eq!(copies, 12, "{log:#?}");
    assert!(sent < 9 * MIB, "{sent}");
    assert!(log.iter().filter(|line| line.starts_with("GET large")).count() <= 9, "{log:#?}");
    let mut around = [0; 20];
    file.read_exact_at(&mut around, 49_999_990).unwrap();
    assert_eq!(around, data[49_999_990..50_000_010]);
}

#[test]
fn more_can_be_written_than_may_be_staged() {
    let server = Server::start();
    let mounted = Mounted::start_with(&server, Folder::new(), json!({"stage_max_mib": 16}));
    let data = pattern(50 * MIB, 5);

    let mut file = File::create(mounted.file("large")).unwrap();
    file.write_all(&data).unwrap();
    drop(file);

    assert!(server.body("large").unwrap() == data);
}

#[test]
fn a_directory_with_thousands_of_keys_is_listed_whole() {
    let server = Server::start();
    for number in 0..10_000 {
        server.bucket().put(&format!("many/{number:05}"), b"x");
    }
    let mounted = Mounted::start(&server);
    server.take_log();

    let found = names(&mounted.file("many"));

    assert_eq!(found.len(), 10_000);
    assert_eq!(found[9_999], "09999");
    assert!(server.take_log().len() < 20);
    assert_eq!(fs::metadata(mounted.file("many/07777")).unwrap().len(), 1);
    assert!(!mounted.file("many/x").exists());
}

#[test]
fn a_directory_that_is_too_large_for_memory_is_listed_in_pages() {
    let server = Server::start();
    for number in 0..25_000 {
        server.bucket().put(&format!("many/{number:05}"), b"x");
    }
    let mounted = Mounted::start(&server);
    fs::write(mounted.file("many/new"), "x").unwrap();

    assert_eq!(names(&mounted.file("many")).len(), 25_001);
    assert_eq!(fs::read_to_string(mounted.file("many/24999")).unwrap(), "x");
}

#[test]
fn memory_stays_bounded() {
    let server = Server::start();
    for number in 0..2_000 {
        server.bucket().put(&format!("many/{number}"), b"x");
    }
    let mounted = Mounted::start(&server);
    let data = pattern(64 * MIB, 9);

    fs::write(mounted.file("large"), &data).unwrap();
    names(&mounted.file("many"));
    let folder = mounted.unmount();
    let mounted = Mounted::start_with(&server, folder, json!({}));
    let mut readers: Vec<File> = (0..4).map(|_| File::open(mounted.file("large")).unwrap()).collect();
    let mut buffer = vec![0; 3 * MIB];
    for _ in 0..20 {
        readers.iter_mut().for_each(|reader| reader.read_exact(&mut buffer).unwrap());
    }

    let status = fs::read_to_string(format!("/proc/{}/status", mounted.pid())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap().trim().trim_end_matches(" kB");
    assert!(peak.parse::<usize>().unwrap() < 24 * 1024, "{peak} KiB");
}

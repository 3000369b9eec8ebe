#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
//! Thousands of random operations, compared with the same operations on an ordinary folder.

mod support;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::json;
use support::mounted::{Folder, Mounted};
use support::server::Server;

const OPERATIONS: u64 = 20_000;
const REMOUNT_EVERY: u64 = 2_500;
const FILE_MAX_BYTES: u64 = 300_000;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % limit
    }

    fn name(&mut self) -> String {
        let directory = ["", "a/", "b/", "a/c/"][self.below(4) as usize];
        format!("{directory}f{}", self.below(6))
    }
}

/// A file that is open on the mount and in the folder.
type Pair = (File, File);

/// What can happen to a name. Errors must be the same on both sides.
fn operate(random: &mut Random, mounted: &Path, shadow: &Path, open: &mut BTreeMap<u64, Pair>) -> String {
    let both = |name: &str| (mounted.join(name), shadow.join(name));
    let slot = random.below(8);
    let name = random.name();
    match random.below(20) {
        0..=2 => {
            let truncate = random.below(4) == 0;
            let open_one =
                |path: PathBuf| OpenOptions::new().read(true).write(true).create(true).truncate(truncate).open(path);
            let (real, copy) = both(&name);
            match (open_one(real), open_one(copy)) {
                (Ok(real), Ok(copy)) => drop(open.insert(slot, (real, copy))),
                (real, copy) => same(real.map(drop), copy.map(drop), &format!("open {name}")),
            }
            format!("open {slot} {name} truncate={truncate}")
        }
        3..=8 => {
            let Some((real, copy)) = open.get(&slot) else { return String::new() };
            let offset = random.below(FILE_MAX_BYTES);
            let limit = [10, 5_000, 70_000][random.below(3) as usize];
            let length = random.below(limit) as usize;
            let data = vec![random.below(256) as u8; length];
            same(real.write_all_at(&data, offset), copy.write_all_at(&data, offset), "write");
            format!("write {slot} {offset}+{length}")
        }
        9..=12 => {
            let Some((real, copy)) = open.get(&slot) else { return String::new() };
            let (offset, length) = (random.below(FILE_MAX_BYTES), random.below(60_000) as usize);
            assert!(read(real, offset, length) == read(copy, offset, length), "read {slot} at {offset}+{length}");
            format!("read {slot} {offset}+{length}")
        }
        13 => {
            let Some((real, copy)) = open.get(&slot) else { return String::new() };
            let size = random.below(FILE_MAX_BYTES);
            same(real.set_len(size), copy.set_len(size), "truncate");
            format!("truncate {slot} {size}")
        }
        14 => {
            open.remove(&slot);
            format!("close {slot}")
        }
        15 => {
            let Some((real, _)) = open.get(&slot) else { return String::new() };
            real.sync_all().unwrap();
            format!("sync {slot}")
        }
        16 => {
            let (real, copy) = both(&name);
            same(fs::remove_file(real), fs::remove_file(copy), &format!("remove {name}"));
            format!("remove {name}")
        }
        17 => {
            let to = random.name();
            let (from, to) = (both(&name), both(&to));
            same(fs::rename(from.0, &to.0), fs::rename(from.1, &to.1), "rename");
            format!("rename {name} {}", to.0.display())
        }
        18 => {
            let (real, copy) = both(&name);
            match (fs::read(&real), fs::read(&copy)) {
                (Ok(real), Ok(copy)) => assert!(real == copy, "content of {name}"),
                (real, copy) => same(real.map(drop), copy.map(drop), &format!("read {name}")),
            }
            format!("read all {name}")
        }
        _ => {
            let names = [("a", "d"), ("d", "a"), ("a/c", "a/e"), ("a/e", "a/c")];
            let (from, to) = names[random.below(4) as usize];
            let (from, to) = (both(from), both(to));
            same(fs::rename(&from.0, &to.0), fs::rename(&from.1, &to.1), "rename of a directory");
            format!("rename {} {}", from.0.display(), to.0.display())
        }
    }
}

fn read(file: &File, offset: u64, length: usize) -> Vec<u8> {
    let mut buffer = vec![0; length];
    let mut count = 0;
    while count < length {
        match file.read_at(&mut buffer[count..], offset + count as u64).unwrap() {
            0 => break,
            more => count += more,
        }
    }
    buffer.truncate(count);
    buffer
}

fn same<T>(real: std::io::Result<T>, copy: std::io::Result<T>, what: &str) {
    let code = |result: &std::io::Result<T>| result.as_ref().err().and_then(std::io::Error::raw_os_error);
    assert_eq!(code(&real), code(&copy), "{what}");
}

/// All files below a folder with their content.
fn contents(path: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            let is_folder = entry.file_type().unwrap().is_dir();
            let content = if is_folder { None } else { Some(fs::read(entry.path()).unwrap()) };
            if is_folder {
                folders.push(entry.path());
            }
            found.insert(entry.path().strip_prefix(path).unwrap().to_owned(), content);
        }
    }
    found
}

#[test]
fn random_operations_give_what_an_ordinary_folder_gives() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_261_117);
    let mut random = Random(seed);
    let server = Server::start();
    let shadow = Folder::new();
    let mut mounted = Mounted::start(&server);
    for folder in ["a", "b", "a/c"] {
        fs::create_dir(mounted.file(folder)).unwrap();
        fs::create_dir(shadow.0.join("mnt").join(folder)).unwrap();
    }
    let mut open = BTreeMap::new();

    for number in 1..=OPERATIONS {
        let step = operate(&mut random, &mounted.path, &shadow.0.join("mnt"), &mut open);
        if std::env::var("TRACE").is_ok() {
            eprintln!("{number}: {step}");
        }
        if number % REMOUNT_EVERY == 0 {
            open.clear();
            let folder = mounted.unmount();
            mounted = Mounted::start_with(&server, folder, json!({}));
            let (real, copy) = (contents(&mounted.path), contents(&shadow.0.join("mnt")));
            assert_eq!(real.keys().collect::<Vec<_>>(), copy.keys().collect::<Vec<_>>());
            assert!(real == copy, "different content after {number} operations");
        }
    }
}

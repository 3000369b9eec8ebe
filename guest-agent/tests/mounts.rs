#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
//! Supervision of mount programs. Scripts take their place, because they must fail; host-agent/src/disks/guest-mounts.test.ts
//! uses the real one.

mod support;

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use guest_agent::mounts;
use serde_json::{Value, json};
use support::mounts::{OBEDIENT, errno, log, start_agent, start_agent_with, use_program};
use support::{Scratch, until};

fn wanted(scratch: &Scratch, revision: u64) -> String {
    let mount = json!({
        "id": "m1", "mount_path": scratch.path("mnt"), "address": "127.0.0.1:9", "token": "secret", "revision": revision,
    });
    json!({"mounts": [mount]}).to_string()
}

#[tokio::test]
async fn without_a_mount_program_disks_are_unavailable() {
    let host = start_agent();
    let scratch = Scratch::new();
    let client = host.connect().await;

    let refused = client.call("PUT", "/mounts", wanted(&scratch, 1)).await;
    let empty = client.call("PUT", "/mounts", r#"{"mounts":[]}"#).await;
    let invalid = client.call("PUT", "/mounts", wanted(&scratch, 1).replace("m1", "../m")).await;

    assert_eq!((refused.status, refused.json()["code"].as_str().unwrap()), (503, "disks_unavailable"));
    assert_eq!((empty.status, empty.json()), (200, json!({"mounts": [], "removed": []})));
    assert_eq!(invalid.status, 400);
    assert_eq!(client.call("GET", "/mounts/nothing", "").await.status, 404);
}

#[tokio::test]
async fn a_program_that_fails_is_reported_and_tried_again() {
    let host = start_agent();
    let scratch = Scratch::new();
    let failing =
        "#!/bin/sh\nread -r config\necho x >> LOG\necho '{\"event\":\"failed\",\"message\":\"no bucket\"}'\nexit 1\n";
    use_program(&host, &scratch, failing);
    let client = host.connect().await;

    let started = client.call("PUT", "/mounts", wanted(&scratch, 1)).await.json();
    until("the first attempt", || log(&scratch).lines().count() >= 1).await;
    let mut report = Value::Null;
    while report["status"] != "failed" {
        report = client.call("GET", "/mounts", "").await.json()["mounts"][0].clone();
    }

    assert_eq!(started["mounts"][0]["status"], "pending");
    assert_eq!([&report["status"], &report["mount_error"]], ["failed", "no bucket"]);
    assert_eq!(errno(fs::write(scratch.path("mnt/lost"), "")), Some(libc::ENOTCONN));
    client.call("PUT", "/mounts", wanted(&scratch, 2)).await;
    until("the second attempt", || log(&scratch).lines().count() >= 2).await;
}

#[tokio::test]
async fn a_new_connection_is_passed_on_and_a_mount_that_is_not_wanted_is_unmounted() {
    let host = start_agent();
    let scratch = Scratch::new();
    use_program(&host, &scratch, OBEDIENT);
    let client = host.connect().await;
    client.call("PUT", "/mounts", wanted(&scratch, 1)).await;
    while client.call("GET", "/mounts", "").await.json()["mounts"][0]["details"].is_null() {}

    client.call("PUT", "/mounts", wanted(&scratch, 2).replace("secret", "rotated")).await;
    let flushed = client.call("POST", "/mounts/flush", r#"{"deadline_ms":1000}"#).await.json();
    let removed = client.call("PUT", "/mounts", r#"{"mounts":[]}"#).await.json();

    assert_eq!(flushed["mounts"][0]["details"]["dirty_files"], 0);
    assert_eq!(removed, json!({"mounts": [], "removed": [{"id": "m1", "unsaved_files": 0}]}));
    let log = log(&scratch);
    for command in ["\"do\":\"connect\"", "\"token\":\"rotated\"", "\"do\":\"flush\"", "\"do\":\"unmount\""] {
        assert!(log.contains(command), "{command}: {log}");
    }
}

#[tokio::test]
async fn a_fork_has_no_mounts_and_a_resumed_machine_keeps_them() {
    let host = start_agent();
    let scratch = Scratch::new();
    use_program(&host, &scratch, OBEDIENT);
    let client = host.connect().await;
    client.call("PUT", "/mounts", wanted(&scratch, 1)).await;
    while client.call("GET", "/mounts", "").await.json()["mounts"][0]["details"].is_null() {}
    fs::create_dir_all(scratch.path("stages/m1")).unwrap();
    fs::create_dir_all(scratch.path("stages/detached")).unwrap();

    mounts::after_restore(&host.agent, false).await;
    assert!(log(&scratch).contains("\"do\":\"wake\""));
    assert_eq!(client.call("GET", "/mounts", "").await.json()["mounts"].as_array().unwrap().len(), 1);

    mounts::after_restore(&host.agent, true).await;
    assert!(log(&scratch).contains("\"do\":\"discard\""));
    assert!(!scratch.path("stages/m1").exists() && !scratch.path("stages/detached").exists());
    assert_eq!(client.call("GET", "/mounts", "").await.json(), json!({"mounts": []}));
    fs::write(scratch.path("mnt/own"), "").unwrap();
}

#[tokio::test]
async fn a_wanted_mount_covers_its_directory_until_it_is_detached() {
    let host = start_agent();
    let scratch = Scratch::new();
    use_program(&host, &scratch, OBEDIENT);
    fs::create_dir(scratch.path("mnt")).unwrap();
    fs::write(scratch.path("mnt/before"), "content").unwrap();
    let client = host.connect().await;

    client.call("PUT", "/mounts", wanted(&scratch, 1)).await;
    let written = errno(fs::write(scratch.path("mnt/lost"), ""));
    let listed = errno(fs::read_dir(scratch.path("mnt")));
    let read = errno(fs::read(scratch.path("mnt/before")));
    client.call("PUT", "/mounts", r#"{"mounts":[]}"#).await;

    assert_eq!([written, listed, read], [Some(libc::ENOTCONN); 3]);
    assert_eq!(fs::read_to_string(scratch.path("mnt/before")).unwrap(), "content");
    assert!(!scratch.path("mnt/lost").exists());
}

#[tokio::test]
async fn a_cover_that_the_user_removes_comes_back_with_the_next_attempt() {
    let host = start_agent();
    let scratch = Scratch::new();
    use_program(&host, &scratch, "#!/bin/sh\nread -r config\necho x >> LOG\nexit 1\n");
    let client = host.connect().await;
    client.call("PUT", "/mounts", wanted(&scratch, 1)).await;
    until("the first attempt", || log(&scratch).lines().count() >= 1).await;

    let path = scratch.path("mnt");
    assert!(Command::new("umount").arg("-l").arg(&path).status().unwrap().success());
    client.call("PUT", "/mounts", wanted(&scratch, 2)).await;

    until("the cover", || errno(fs::read_dir(&path)) == Some(libc::ENOTCONN)).await;
    client.call("PUT", "/mounts", r#"{"mounts":[]}"#).await;
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
}

#[tokio::test]
async fn a_path_through_a_symbolic_link_is_mounted_where_it_leads() {
    let host = start_agent();
    let scratch = Scratch::new();
    use_program(&host, &scratch, OBEDIENT);
    fs::create_dir(scratch.path("real")).unwrap();
    symlink(scratch.path("real"), scratch.path("link")).unwrap();
    let client = host.connect().await;

    client.call("PUT", "/mounts", wanted(&scratch, 1).replace("/mnt", "/link/inner")).await;

    assert_eq!(errno(fs::read_dir(scratch.path("real/inner"))), Some(libc::ENOTCONN));
    let config = format!("\"mount_point\":{}", json!(scratch.path("real/inner")));
    until("the configuration", || log(&scratch).contains(&config)).await;
    client.call("PUT", "/mounts", r#"{"mounts":[]}"#).await;
    assert_eq!(fs::read_dir(scratch.path("real/inner")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_path_that_cannot_be_used_says_what_to_do() {
    let host = start_agent();
    let scratch = Scratch::new();
    use_program(&host, &scratch, OBEDIENT);
    symlink(scratch.path("nothing"), scratch.path("dangling")).unwrap();
    symlink("/run", scratch.path("closed")).unwrap();
    symlink("/", scratch.path("root")).unwrap();
    fs::write(scratch.path("file"), "").unwrap();
    symlink(scratch.path("used/inner"), scratch.path("nested")).unwrap();
    symlink(scratch.path("used"), scratch.path("same")).unwrap();
    fs::create_dir_all(scratch.path("used/inner")).unwrap();
    let client = host.connect().await;

    let cases = [
        ("dangling", "symbolic link to a directory that does not exist"),
        ("closed/inner", "it leads to /run/inner, where no disk can be mounted"),
        ("root", "it leads to /, where no disk can be mounted"),
        ("file", "a file is in its place"),
        ("nested", "it is in another disk of this sandbox"),
        ("same", "another disk of this sandbox is at"),
    ];
    for (name, text) in cases {
        let mount = |id: &str, path: &str| json!({"id": id, "mount_path": scratch.path(path), "address": "127.0.0.1:9", "token": "t", "revision": 1});
        let first = json!({"mounts": [mount("a", "used")]}).to_string();
        client.call("PUT", "/mounts", first).await;
        let both = json!({"mounts": [mount("a", "used"), mount("b", name)]}).to_string();
        client.call("PUT", "/mounts", both).await;
        let mut report = Value::Null;
        while report["status"] != "failed" {
            report = client.call("GET", "/mounts", "").await.json()["mounts"][1].clone();
        }
        let message = report["mount_error"].as_str().unwrap();
        assert!(message.contains(text), "{name}: {message}");
    }
    client.call("PUT", "/mounts", r#"{"mounts":[]}"#).await;
    let _ = fs::remove_dir("/run/inner");
}

#[tokio::test]
async fn a_disk_over_a_folder_of_the_agent_does_not_concern_the_agent() {
    let scratch = Scratch::new();
    let root = scratch.path("root");
    fs::create_dir_all(root.join("etc")).unwrap();
    fs::create_dir_all(root.join("root")).unwrap();
    let host = start_agent_with(&root);
    use_program(&host, &scratch, OBEDIENT);
    let client = host.connect().await;
    let mount = |name: &str| json!({"id": name, "mount_path": root.join(name), "address": "127.0.0.1:9", "token": "t", "revision": 1});
    client.call("PUT", "/mounts", json!({"mounts": [mount("etc"), mount("root")]}).to_string()).await;
    assert_eq!(errno(fs::read_dir(root.join("etc"))), Some(libc::ENOTCONN));

    let identity = json!({"hostname": "resumed", "ssh_pubkeys": ["ssh-ed25519 key"], "nameserver": "10.0.0.1"});
    let applied = client.call("POST", "/identity", identity.to_string()).await;
    let environment = client.call("POST", "/wake", "{}").await;

    assert_eq!((applied.status, applied.json()["hostname"].as_str()), (200, Some("resumed")), "{}", applied.json());
    assert_eq!(environment.status, 200);
    client.call("PUT", "/mounts", r#"{"mounts":[]}"#).await;
    assert_eq!(fs::read_to_string(root.join("etc/hostname")).unwrap(), "resumed\n");
    assert!(fs::read_to_string(root.join("root/.ssh/authorized_keys")).unwrap().contains("ssh-ed25519 key"));
}

#[tokio::test]
async fn what_a_program_that_is_gone_has_not_saved_is_reported() {
    let host = start_agent();
    let scratch = Scratch::new();
    use_program(&host, &scratch, "#!/bin/sh\nread -r config\nexit 1\n");
    fs::create_dir_all(scratch.path("stages/m1/kept")).unwrap();
    for name in ["1.log", "1.data", "2.log", "2.data", "lock"] {
        fs::write(scratch.path(&format!("stages/m1/{name}")), "changes").unwrap();
    }
    let client = host.connect().await;

    client.call("PUT", "/mounts", wanted(&scratch, 1)).await;
    let mut report = Value::Null;
    while report["status"] != "failed" {
        report = client.call("GET", "/mounts", "").await.json()["mounts"][0].clone();
    }
    let removed = client.call("PUT", "/mounts", r#"{"mounts":[]}"#).await.json();

    assert_eq!(report["unsaved"]["files"], 2);
    assert_eq!(removed["removed"], json!([{"id": "m1", "unsaved_files": 2}]));
    assert!(scratch.path("stages/m1/1.data").exists());
}

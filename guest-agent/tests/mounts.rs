#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
//! Supervision of mount programs. Scripts take their place, because they must fail; host-agent/src/disks/guest-mounts.test.ts
//! uses the real one.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use guest_agent::mounts::{self, MountProgramFile, ProgramFile};
use serde_json::{Value, json};
use support::{Host, Scratch, start_agent, until};

/// A script that answers every command, and writes what it reads to a log.
const OBEDIENT: &str = r#"#!/bin/sh
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

fn use_program(host: &Host, scratch: &Scratch, script: &str) {
    let program = scratch.path("program");
    fs::write(&program, script.replace("LOG", scratch.path("log").to_str().unwrap())).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    host.agent
        .mounts
        .set_program(MountProgramFile { file: ProgramFile::Path(program), stages: scratch.path("stages") });
}

fn wanted(scratch: &Scratch, revision: u64) -> String {
    let mount = json!({
        "id": "m1", "mount_path": scratch.path("mnt"), "address": "127.0.0.1:9", "token": "secret", "revision": revision,
    });
    json!({"mounts": [mount]}).to_string()
}

fn log(scratch: &Scratch) -> String {
    fs::read_to_string(scratch.path("log")).unwrap_or_default()
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
    assert_eq!(report, json!({"id": "m1", "revision": 1, "status": "failed", "mount_error": "no bucket"}));
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

    mounts::after_restore(&host.agent, false).await;
    assert!(log(&scratch).contains("\"do\":\"wake\""));
    assert_eq!(client.call("GET", "/mounts", "").await.json()["mounts"].as_array().unwrap().len(), 1);

    mounts::after_restore(&host.agent, true).await;
    assert!(log(&scratch).contains("\"do\":\"discard\""));
    assert!(!scratch.path("stages/m1").exists());
    assert_eq!(client.call("GET", "/mounts", "").await.json(), json!({"mounts": []}));
}

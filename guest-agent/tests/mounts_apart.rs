#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
//! Mounts whose program does not answer, for example because its store is away: what the host learns about them, and that others
//! do not wait for them.

mod support;

use std::fs;

use serde_json::{Value, json};
use support::mounts::{OBEDIENT, log, start_agent, use_program};
use support::{Client, Scratch, send_all, until};

/// Reads commands, and answers none.
const SILENT: &str = "#!/bin/sh\nwhile read -r line; do echo \"$line\" >> LOG; done\n";

fn wanted(scratch: &Scratch, ids: &[&str], token: &str) -> String {
    let mount = |id: &&str| json!({"id": id, "mount_path": scratch.path(id), "address": "127.0.0.1:9", "token": token, "revision": 1});
    json!({"mounts": ids.iter().map(mount).collect::<Vec<_>>()}).to_string()
}

fn leave_changes(scratch: &Scratch, id: &str) {
    fs::create_dir_all(scratch.path(&format!("stages/{id}/kept"))).unwrap();
    for name in ["1.log", "1.data", "2.log", "2.data", "lock"] {
        fs::write(scratch.path(&format!("stages/{id}/{name}")), "changes").unwrap();
    }
}

async fn until_mounts(client: &Client, what: &str, hold: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..1000 {
        let mounts = client.call("GET", "/mounts", "").await.json()["mounts"].clone();
        if hold(&mounts) {
            return mounts;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("timed out waiting until {what}");
}

#[tokio::test]
async fn changes_are_reported_while_the_program_has_not_reached_its_store() {
    let host = start_agent();
    let scratch = Scratch::new();
    use_program(&host, &scratch, SILENT);
    leave_changes(&scratch, "m1");
    let client = host.connect().await;
    client.call("PUT", "/mounts", wanted(&scratch, &["m1"], "t")).await;
    until("the program runs", || log(&scratch).contains("mount_point")).await;

    let before = client.call("GET", "/mounts", "").await.json();
    let flushed = client.call("POST", "/mounts/flush", r#"{"deadline_ms":100}"#).await.json();

    assert_eq!(before["mounts"][0]["unsaved"]["files"], 2, "{before}");
    assert_eq!(flushed["mounts"][0]["unsaved"]["files"], 2, "{flushed}");
}

#[tokio::test]
async fn a_flush_without_an_answer_counts_what_is_unsaved() {
    let host = start_agent();
    let scratch = Scratch::new();
    use_program(
        &host,
        &scratch,
        &SILENT.replace("while", "echo '{\"event\":\"status\",\"status\":{\"dirty_files\":0}}'\nwhile"),
    );
    let client = host.connect().await;
    client.call("PUT", "/mounts", wanted(&scratch, &["m1"], "t")).await;
    let reports = until_mounts(&client, "the first report", |mounts| !mounts[0]["details"].is_null()).await;
    let said = &reports[0];
    leave_changes(&scratch, "m1");

    let flushed = client.call("POST", "/mounts/flush", r#"{"deadline_ms":100}"#).await.json();

    assert_eq!(said["unsaved"]["files"], 0, "{said}");
    assert_eq!(flushed["mounts"][0]["unsaved"]["files"], 2, "{flushed}");
}

#[tokio::test]
async fn a_mount_gets_its_new_connection_before_others_answer_or_are_removed() {
    let host = start_agent();
    let scratch = Scratch::new();
    let silent = "read -r config\necho \"$config\" >> LOG\ncase $config in *silent*) while read -r line; do :; done; exit 0 ;; esac\n";
    use_program(&host, &scratch, &OBEDIENT.replacen('\n', &format!("\n{silent}"), 1));
    let client = host.connect().await;
    client.call("PUT", "/mounts", wanted(&scratch, &["a-silent", "b", "c-silent"], "first")).await;
    until("all programs run", || log(&scratch).matches("mount_point").count() == 3).await;
    until_mounts(&client, "the first report", |mounts| !mounts[1]["details"].is_null()).await;

    let (response, mut send) = client.open("PUT", "/mounts").await;
    send_all(&mut send, wanted(&scratch, &["a-silent", "b"], "second").into(), true).await.unwrap();

    let connected = until("the new connection", || {
        log(&scratch).lines().any(|line| line.contains("connect") && line.contains("second"))
    });
    tokio::select! {
        biased;
        _ = response => panic!("all mounts were waited for"),
        () = connected => {}
    }
}

#[tokio::test]
async fn what_a_removed_mount_left_unsaved_is_repeated_if_the_answer_was_lost() {
    let host = start_agent();
    let scratch = Scratch::new();
    use_program(&host, &scratch, &OBEDIENT.replace("exit 0", "sleep 0.5; exit 0"));
    leave_changes(&scratch, "m1");
    let client = host.connect().await;
    client.call("PUT", "/mounts", wanted(&scratch, &["m1"], "t")).await;
    until("the program runs", || log(&scratch).contains("mount_point")).await;

    let (response, mut send) = client.open("PUT", "/mounts").await;
    send_all(&mut send, r#"{"mounts":[]}"#.into(), true).await.unwrap();
    until("the unmount", || log(&scratch).contains("unmount")).await;
    drop((response, send));
    until_mounts(&client, "the mount is gone", |mounts| mounts == &json!([])).await;
    let again = client.call("PUT", "/mounts", r#"{"mounts":[]}"#).await.json();

    assert_eq!(again["removed"], json!([{"id": "m1", "unsaved_files": 2}]));
    let back = client.call("PUT", "/mounts", wanted(&scratch, &["m1"], "t")).await.json();
    assert_eq!(back["removed"], json!([]));
}

//! A step of a build: the execution contract of `dockerfile/src/guest-action.ts`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use serde_json::{Value, json};
use support::processes_client::{Frame, output_of};
use support::start_agent;

fn temporary(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("warren-step-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    path
}

fn step(owner: Value, files: Value) -> Value {
    json!({"owner": owner, "umask": 0o027, "files": files})
}

#[tokio::test]
async fn a_step_has_its_user_its_variables_its_folder_and_no_input() {
    let host = start_agent();
    let client = host.connect().await;
    let cwd = temporary("cwd").join("a/b");
    let script = "id -u; id -g; id -G; pwd; umask; read line || echo no input; exec env";
    let id = client
        .start(json!({
            "cmd": "sh", "args": ["-c", script], "cwd": cwd, "env": {"PATH": "/usr/bin:/bin", "ONE": "1"},
            "build": step(json!({"user": "65534", "group": "4242"}), json!([])),
        }))
        .await["process_id"]
        .as_str()
        .unwrap()
        .to_owned();

    let frames = client.frames(&id, 0).await;

    let text = String::from_utf8(output_of(&frames, 0)).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..6], ["65534", "4242", "4242", cwd.to_str().unwrap(), "0027", "no input"]);
    // The shell adds PWD and its relatives; nothing comes from the agent.
    let mut names: Vec<&str> = lines[6..].iter().filter_map(|line| line.split('=').next()).collect();
    names.retain(|name| !["PWD", "OLDPWD", "SHLVL", "_"].contains(name));
    names.sort_unstable();
    assert_eq!(names, ["HOME", "ONE", "PATH"]);
    assert_eq!(frames.last(), Some(&Frame::Exit(json!({"exit_code": 0}))));
    let made = fs::metadata(&cwd).unwrap();
    assert_eq!((made.uid(), made.mode() & 0o7777), (0, 0o755));
    fs::remove_dir_all(temporary("cwd")).ok();
}

#[tokio::test]
async fn the_files_of_a_step_exist_while_it_runs_and_only_then() {
    let host = start_agent();
    let client = host.connect().await;
    let file = temporary("files").join("script");
    let files = json!([{"path": file, "mode": 0o755, "content": "#!/bin/sh\necho from the file\n"}]);
    let start = |cmd: Value| json!({"cmd": cmd, "cwd": "/", "build": step(json!({"user": "root"}), files.clone())});

    let id = client.start(start(json!(file))).await["process_id"].as_str().unwrap().to_owned();
    let frames = client.frames(&id, 0).await;

    assert_eq!(output_of(&frames, 0), b"from the file\n");
    support::until("the file is removed", || !file.exists()).await;
    let failed = client.call("POST", "/processes", start(json!("/no/such/program")).to_string()).await;
    assert_eq!((failed.status, failed.json()["code"].as_str()), (400, Some("invalid_cmd")));
    assert!(!file.exists());
    fs::remove_dir_all(file.parent().unwrap()).unwrap();
}

#[tokio::test]
async fn an_unknown_user_fails_the_step_and_leaves_no_record() {
    let host = start_agent();
    let client = host.connect().await;
    let body = json!({"cmd": "true", "cwd": "/", "build": step(json!({"user": "no-such-user"}), json!([]))});

    let response = client.call("POST", "/processes", body.to_string()).await;

    assert_eq!((response.status, response.json()["code"].as_str()), (400, Some("invalid_owner")));
    assert!(response.json()["message"].as_str().unwrap().contains("no-such-user"));
}

#[tokio::test]
async fn a_folder_is_made_for_its_owner() {
    let host = start_agent();
    let client = host.connect().await;
    let folder = temporary("folder");
    let body = json!({"path": folder.join("app"), "mode": 0o755, "owner": {"user": "4242"}});

    let made = client.call("POST", "/folders", body.to_string()).await;
    let relative = client
        .call("POST", "/folders", json!({"path": "../x", "mode": 0o755, "owner": {"user": "0"}}).to_string())
        .await;

    assert_eq!(made.status, 200);
    let found = fs::metadata(folder.join("app")).unwrap();
    assert_eq!((found.uid(), found.gid(), found.mode() & 0o7777), (4242, 0, 0o755));
    assert_eq!(relative.status, 400);
    fs::remove_dir_all(folder).unwrap();
}

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use serde_json::json;
use support::processes_client::{Frame, id_of, output_of};
use support::start_agent;

#[tokio::test]
async fn a_terminal_has_its_size_its_type_and_its_environment() {
    let host = start_agent();
    let client = host.connect().await;
    let started =
        client.start(json!({"cmd": "sh", "args": ["-c", "stty size; echo $TERM; tty; exit 9"], "pty": {}})).await;

    let frames = client.frames(&id_of(&started), 0).await;

    let output = String::from_utf8(output_of(&frames, 0)).unwrap();
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!((lines[0], lines[1]), ("24 80", "xterm-256color"));
    assert!(lines[2].starts_with("/dev/"), "{output}");
    assert_eq!(started["kind"], "pty");
    assert!(frames[..frames.len() - 1].iter().all(|frame| matches!(frame, Frame::Output { stream: 7, .. })));
    assert_eq!(frames.last(), Some(&Frame::Exit(json!({"exit_code": 9}))));
}

#[tokio::test]
async fn a_resize_is_applied_and_signalled_before_the_response() {
    let host = start_agent();
    let client = host.connect().await;
    let script = "trap 'stty size' WINCH; echo up; while :; do sleep 0.01; done";
    let started = client.start(json!({"cmd": "sh", "args": ["-c", script], "pty": {"rows": 10, "cols": 0}})).await;
    let id = id_of(&started);
    let mut reader = client.follow(&id, 0).await;
    reader.until_text("up").await;

    let response = client.post(&id, "resize", r#"{"rows":33,"cols":101}"#).await;

    assert_eq!((response.status, response.json()), (200, json!({})));
    reader.until_text("33 101").await;
    assert_eq!(client.post(&id, "resize", r#"{"rows":0,"cols":1}"#).await.status, 400);
    let wrong = client.post(&id, "stdin/close", "").await;
    assert_eq!((wrong.status, wrong.json()["code"].as_str()), (409, Some("wrong_process_kind")));
}

#[tokio::test]
async fn all_256_bytes_come_back_from_a_raw_terminal() {
    let host = start_agent();
    let client = host.connect().await;
    let started = client.start(json!({"cmd": "sh", "args": ["-c", "stty raw -echo; echo up; cat"], "pty": {}})).await;
    let id = id_of(&started);
    let mut reader = client.follow(&id, 0).await;
    assert_eq!(reader.until_text("up\n").await, "up\n");
    let input: Vec<u8> = (0..=255).collect();

    client.post(&id, "input", input.clone()).await;

    let mut echoed = Vec::new();
    while echoed.len() < input.len() {
        match reader.next().await {
            Some(Frame::Output { bytes, .. }) => echoed.extend_from_slice(&bytes),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(echoed, input);
}

#[tokio::test]
async fn without_a_command_a_login_shell_runs_and_the_foreground_process_is_shown() {
    let host = start_agent();
    let client = host.connect().await;
    let started = client.start(json!({"pty": {}, "cwd": "/"})).await;
    let id = id_of(&started);
    let mut reader = client.follow(&id, 0).await;
    client.post(&id, "input", "echo name:$0 shell:$SHELL\n").await;
    let shell = started["cmd"].as_str().unwrap().to_owned();
    let name = shell.rsplit('/').next().unwrap().to_owned();
    reader.until_text(&format!("name:-{name} shell:{shell}")).await;
    assert_eq!(started["args"], json!([]));
    let idle = client.until_process("it is idle", &id, |one| one["foreground"]["pid"] == one["pid"]).await;
    // Shown by its name: a client that sees a shell there considers the terminal idle.
    assert_eq!(idle["foreground"]["cmd"], name);

    client.post(&id, "input", "sleep 1000\n").await;
    let busy = client.until_process("sleep is in the foreground", &id, |one| one["foreground"]["cmd"] == "sleep").await;
    assert_eq!(busy["foreground"]["args"], json!(["1000"]));

    // Sent to the foreground process, not to the shell.
    client.post(&id, "signal", r#"{"signal":"SIGINT"}"#).await;
    client.until_process("it is idle again", &id, |one| one["foreground"]["pid"] == one["pid"]).await;
    client.post(&id, "input", "exit 6\n").await;
    let ended = client.wait(&id, "tree").await;
    assert_eq!((&ended["exit_code"], ended.get("foreground")), (&json!(6), None));
}

#[tokio::test]
async fn the_foreground_of_a_new_terminal_is_the_program_and_never_the_agent() {
    let host = start_agent();
    let client = host.connect().await;
    for _ in 0..20 {
        let started = client.start(json!({"cmd": "/bin/cat", "args": ["-u"], "pty": {}})).await;

        assert_eq!(started["foreground"], json!({"pid": started["pid"], "cmd": "/bin/cat", "args": ["-u"]}));
    }
}

#[tokio::test]
async fn a_program_that_closes_its_terminal_keeps_running() {
    let host = start_agent();
    let client = host.connect().await;
    let script = "exec </dev/null >/dev/null 2>&1; sleep 0.1; echo back >/dev/tty";
    let started = client.start(json!({"cmd": "sh", "args": ["-c", script], "pty": {}})).await;

    let frames = client.frames(&id_of(&started), 0).await;

    assert_eq!(output_of(&frames, 0), b"back\r\n");
    assert_eq!(frames.last(), Some(&Frame::Exit(json!({"exit_code": 0}))));
}

#[tokio::test]
async fn a_terminal_session_that_ignores_signals_is_deleted() {
    let host = start_agent();
    let client = host.connect().await;
    let started = client.start(json!({"pty": {}})).await;
    let id = id_of(&started);
    client.post(&id, "input", "sh -c \"trap '' TERM HUP; echo dea''f; while :; do sleep 0.01; done\"\n").await;
    client.follow(&id, 0).await.until_text("deaf").await;

    let record = client.delete(&id, 50).await;

    assert_eq!(
        (&record["state"], &record["exit_code"], &record["tree_exited"]),
        (&json!("exited"), &json!(null), &json!(true))
    );
    assert!(record["signal"].is_string());
}

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use serde_json::json;
use support::processes_client::{Frame, id_of, output_of};
use support::{is_alive, start_agent, until};

#[tokio::test]
async fn a_process_runs_and_its_record_shows_how_it_ended() {
    let host = start_agent();
    let client = host.connect().await;

    let started =
        client.start(json!({"cmd": "sh", "args": ["-c", "echo out; echo err >&2; exit 3"], "cwd": "/usr"})).await;
    let id = id_of(&started);
    let ended = client.wait(&id, "tree").await;

    assert!(id.starts_with("proc_"));
    assert_eq!(
        (&started["kind"], &started["state"], &started["cwd"]),
        (&json!("process"), &json!("running"), &json!("/usr"))
    );
    assert_eq!(started["exit_code"], json!(null));
    assert_eq!(started["finished_at"], json!(null));
    assert!(started.get("signal").is_none() && started.get("foreground").is_none());
    assert!(started["pid"].as_i64().unwrap() > 1);
    assert_eq!((&ended["state"], &ended["exit_code"]), (&json!("exited"), &json!(3)));
    assert_eq!((&ended["leader_exited"], &ended["tree_exited"]), (&json!(true), &json!(true)));
    assert_eq!(ended["output"], json!({"oldest_seq": 1, "newest_seq": 2, "bytes": 8}));
    assert_eq!(ended["args"], json!(["-c", "echo out; echo err >&2; exit 3"]));
    let (created, finished) = (ended["created_at"].as_str().unwrap(), ended["finished_at"].as_str().unwrap());
    assert!(created.len() == 27 && created < finished && finished.ends_with('Z'));
}

#[tokio::test]
async fn output_is_numbered_across_both_streams_and_the_exit_comes_last_even_long_after() {
    let host = start_agent();
    let client = host.connect().await;
    let id = client.run("sh", &["-c", "echo out; sleep 0.05; echo err >&2; exit 3"]).await;

    let live = client.frames(&id, 0).await;
    let replayed = client.frames(&id, 0).await;
    let rest = client.frames(&id, 1).await;
    let nothing = client.frames(&id, 77).await;

    let output = |stream, seq, text: &'static str| Frame::Output { stream, seq, bytes: text.into() };
    let exit = Frame::Exit(json!({"exit_code": 3}));
    assert_eq!(live, [output(1, 1, "out\n"), output(2, 2, "err\n"), exit.clone()]);
    assert_eq!(replayed, live);
    assert_eq!(rest, live[1..]);
    assert_eq!(nothing, [exit]);
}

#[tokio::test]
async fn a_death_by_signal_has_a_name_and_no_exit_code() {
    let host = start_agent();
    let client = host.connect().await;
    let id = client.run("sleep", &["1000"]).await;

    let response = client.post(&id, "signal", r#"{"signal":"SIGUSR1"}"#).await;
    let frames = client.frames(&id, 0).await;

    assert_eq!((response.status, response.json()), (200, json!({})));
    assert_eq!(frames, [Frame::Exit(json!({"signal": "SIGUSR1"}))]);
    let record = client.process(&id).await;
    assert_eq!((&record["exit_code"], &record["signal"]), (&json!(null), &json!("SIGUSR1")));
}

#[tokio::test]
async fn a_process_that_cannot_start_reports_the_reason_and_leaves_a_failed_record() {
    let host = start_agent();
    let client = host.connect().await;
    let code = async |wanted: serde_json::Value| {
        let response = client.call("POST", "/processes", wanted.to_string()).await;
        (response.status, response.json()["code"].as_str().unwrap().to_owned())
    };

    assert_eq!(code(json!({"cmd": "no-such-command"})).await, (400, "invalid_cmd".into()));
    assert_eq!(code(json!({"cmd": "/"})).await, (400, "invalid_cmd".into()));
    assert_eq!(code(json!({"cmd": "true", "cwd": "/no/such"})).await, (400, "invalid_cwd".into()));
    assert_eq!(code(json!({"cmd": "true", "cwd": "/no/such", "pty": {}})).await, (400, "invalid_cwd".into()));
    assert_eq!(code(json!({})).await, (400, "invalid_cmd".into()));
    assert_eq!(code(json!({"cmd": "a\0b"})).await, (400, "invalid".into()));
    assert_eq!(code(json!({"cmd": "true", "env": {"A=B": ""}})).await, (400, "invalid".into()));

    let list = client.call("GET", "/processes", "").await.json();
    let states: Vec<&str> =
        list["processes"].as_array().unwrap().iter().map(|one| one["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["failed"; 4]);
    let failed = &list["processes"][0];
    assert_eq!((&failed["pid"], &failed["tree_exited"], &failed["exit_code"]), (&json!(0), &json!(true), &json!(null)));
    let id = id_of(failed);
    let frames = client.frames(&id, 0).await;
    assert!(matches!(frames.as_slice(), [Frame::Error(error)] if error["code"] == "process_failed"));
    assert_eq!(client.delete(&id, 1000).await["state"], "failed");
    assert_eq!(client.post(&id, "input", "x").await.json()["code"], "process_exited");
}

#[tokio::test]
async fn an_unknown_process_is_not_found_by_any_endpoint() {
    let host = start_agent();
    let client = host.connect().await;
    for (method, verb) in [
        ("GET", ""),
        ("DELETE", ""),
        ("GET", "/connect"),
        ("GET", "/wait"),
        ("POST", "/input"),
        ("POST", "/stdin/close"),
        ("POST", "/resize"),
        ("POST", "/signal"),
    ] {
        let response = client.call(method, &format!("/processes/proc_0{verb}"), "").await;
        assert_eq!(
            (response.status, response.json()["code"].as_str()),
            (404, Some("process_not_found")),
            "{method} {verb}"
        );
    }
}

#[tokio::test]
async fn a_wait_that_times_out_is_reported() {
    let host = start_agent();
    let client = host.connect().await;
    let id = client.run("sleep", &["1000"]).await;

    let response = client.call("GET", &format!("/processes/{id}/wait?timeout_ms=20"), "").await;
    let bad = client.call("GET", &format!("/processes/{id}/wait?scope=all"), "").await;

    assert_eq!((response.status, response.json()["code"].as_str()), (408, Some("wait_timeout")));
    assert_eq!(bad.status, 400);
    assert_eq!(client.process(&id).await["state"], "running");
}

#[tokio::test]
async fn an_exited_process_rejects_input_and_signals() {
    let host = start_agent();
    let client = host.connect().await;
    let id = client.run("true", &[]).await;
    client.wait(&id, "leader").await;

    for (verb, body) in [("input", "x"), ("stdin/close", ""), ("signal", r#"{"signal":"SIGTERM"}"#)] {
        let response = client.post(&id, verb, body).await;
        assert_eq!((response.status, response.json()["code"].as_str()), (409, Some("process_exited")), "{verb}");
    }
    let unknown = client.post(&id, "signal", r#"{"signal":"SIGSTOP"}"#).await;
    assert_eq!((unknown.status, unknown.json()["code"].as_str()), (400, Some("invalid_signal")));
    let wrong = client.post(&id, "resize", r#"{"rows":1,"cols":1}"#).await;
    assert_eq!((wrong.status, wrong.json()["code"].as_str()), (409, Some("wrong_process_kind")));
}

#[tokio::test]
async fn processes_survive_the_host_that_started_them() {
    let host = start_agent();
    let client = host.connect().await;
    let id = client.run("sh", &["-c", "echo one; read line; echo $line"]).await;
    let mut reader = client.follow(&id, 0).await;
    assert_eq!(reader.until_text("one").await, "one\n");
    drop((reader, client));

    let next = host.connect().await;
    assert_eq!(next.process(&id).await["state"], "running");
    next.post(&id, "input", "two\n").await;
    let frames = next.frames(&id, 1).await;

    assert_eq!(output_of(&frames, 1), b"two\n");
    assert_eq!(frames.last(), Some(&Frame::Exit(json!({"exit_code": 0}))));
}

#[tokio::test]
async fn a_start_whose_caller_disconnects_appears_in_the_list() {
    let host = start_agent();
    let client = host.connect().await;
    let (response, mut send) = client.open("POST", "/processes").await;
    send.send_data(json!({"cmd": "sleep", "args": ["1000"]}).to_string().into(), true).unwrap();
    // The host disconnects without waiting for the response; the request is sent before the next hello.
    client.call("GET", "/ready", "").await;
    drop((response, send, client));

    let next = host.connect().await;
    loop {
        let list = next.call("GET", "/processes", "").await.json();
        let states: Vec<_> = list["processes"].as_array().unwrap().iter().map(|record| &record["state"]).collect();
        assert!(states.len() <= 1);
        if states == ["running"] {
            break;
        }
    }
}

#[tokio::test]
async fn sixty_four_processes_may_run_and_ended_records_make_room() {
    let host = start_agent();
    let client = host.connect().await;
    let mut ids = Vec::new();
    for _ in 0..64 {
        ids.push(client.run("cat", &[]).await);
    }

    let rejected = client.call("POST", "/processes", r#"{"cmd":"true"}"#).await;
    assert_eq!((rejected.status, rejected.json()["code"].as_str()), (429, Some("process_limit_reached")));

    // All of them work at the same time.
    for (number, id) in ids.iter().enumerate() {
        assert_eq!(client.post(id, "input", format!("{number}\n")).await.status, 200);
    }
    for (number, id) in ids.iter().enumerate() {
        assert_eq!(client.follow(id, 0).await.until_text("\n").await, format!("{number}\n"));
    }

    client.delete(&ids[3], 0).await;
    client.delete(&ids[5], 0).await;
    let limits = json!({"cmd": "true", "live_max": 70, "records_max": 64});
    client.start(limits).await;
    let list = client.call("GET", "/processes", "").await.json();
    let remaining: Vec<String> = list["processes"].as_array().unwrap().iter().map(id_of).collect();
    assert_eq!(remaining.len(), 64);
    assert!(!remaining.contains(&ids[3]), "the oldest ended one was dropped");
    assert_eq!(client.call("GET", &format!("/processes/{}", ids[3]), "").await.status, 404);
    let pids: Vec<i64> = list["processes"].as_array().unwrap().iter().map(|one| one["pid"].as_i64().unwrap()).collect();
    drop((client, host));
    until("all are killed with their agent", || !pids.iter().any(|pid| is_alive(*pid))).await;
}

#[tokio::test]
async fn a_long_command_line_is_run_completely_and_recorded_truncated() {
    let host = start_agent();
    let client = host.connect().await;
    let long = "x".repeat(100_000);

    let started =
        client.start(json!({"cmd": "sh", "args": ["-c", "echo ${#1}", "sh", long], "env": null, "pty": null})).await;

    assert_eq!(started["args"], json!(["-c", "echo ${#1}", "sh", "…"]));
    assert_eq!(output_of(&client.frames(&id_of(&started), 0).await, 0), b"100000\n");
}

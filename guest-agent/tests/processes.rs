#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use serde_json::json;
use support::processes_client::{Frame, id_of, output_of};
use support::{Scratch, is_alive, start_agent, until};

#[tokio::test]
async fn a_process_runs_and_its_record_tells_how_it_ended() {
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
async fn output_is_numbered_over_both_streams_and_the_exit_comes_last_also_long_after() {
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

    let answer = client.post(&id, "signal", r#"{"signal":"SIGUSR1"}"#).await;
    let frames = client.frames(&id, 0).await;

    assert_eq!((answer.status, answer.json()), (200, json!({})));
    assert_eq!(frames, [Frame::Exit(json!({"signal": "SIGUSR1"}))]);
    let record = client.process(&id).await;
    assert_eq!((&record["exit_code"], &record["signal"]), (&json!(null), &json!("SIGUSR1")));
}

#[tokio::test]
async fn what_cannot_start_says_what_is_wrong_and_leaves_a_failed_record() {
    let host = start_agent();
    let client = host.connect().await;
    let code = async |wanted: serde_json::Value| {
        let answer = client.call("POST", "/processes", wanted.to_string()).await;
        (answer.status, answer.json()["code"].as_str().unwrap().to_owned())
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
async fn an_unknown_process_is_not_found_whatever_is_asked_of_it() {
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
        let answer = client.call(method, &format!("/processes/proc_0{verb}"), "").await;
        assert_eq!(
            (answer.status, answer.json()["code"].as_str()),
            (404, Some("process_not_found")),
            "{method} {verb}"
        );
    }
}

#[tokio::test]
async fn the_environment_and_the_input_reach_the_program_in_order() {
    let host = start_agent();
    host.agent.set_envs([("A".into(), "sandbox".into()), ("B".into(), "sandbox".into())].into());
    let client = host.connect().await;
    let started =
        client.start(json!({"cmd": "sh", "args": ["-c", "echo $A $B $HOME; cat"], "env": {"B": "mine"}})).await;
    let id = id_of(&started);

    // All at once: they are written in the order in which they were sent.
    let mut sent = Vec::new();
    for number in 0..20 {
        let (response, mut send) = client.open("POST", &format!("/processes/{id}/input")).await;
        send.send_data(format!("{number}\n").into(), true).unwrap();
        sent.push(response);
    }
    let mut numbers = Vec::new();
    for response in sent {
        let body = support::read_all(response.await.unwrap().into_body()).await;
        numbers.push(serde_json::from_slice::<serde_json::Value>(&body).unwrap()["input_seq"].as_i64().unwrap());
    }
    let empty = client.post(&id, "input", "").await.json();
    assert_eq!(client.post(&id, "stdin/close", "").await.json(), json!({}));
    let closed_twice = client.post(&id, "stdin/close", "").await;
    let too_late = client.post(&id, "input", "x").await;
    let frames = client.frames(&id, 0).await;

    assert_eq!(numbers, (1..=20).collect::<Vec<i64>>());
    assert_eq!(empty, json!({"input_seq": 20}));
    // The end of its input may already have ended it.
    for answer in [closed_twice, too_late] {
        assert_eq!(answer.status, 409);
        assert!(["stdin_closed", "process_exited"].contains(&answer.json()["code"].as_str().unwrap()));
    }
    let lines: String = (0..20).map(|number| format!("{number}\n")).collect();
    assert_eq!(String::from_utf8(output_of(&frames, 0)).unwrap(), format!("sandbox mine /root\n{lines}"));
    assert_eq!(frames.last(), Some(&Frame::Exit(json!({"exit_code": 0}))));
}

#[tokio::test]
async fn all_256_bytes_and_a_great_input_pass_through_pipes_unchanged() {
    let host = start_agent();
    let client = host.connect().await;
    let id = client.run("cat", &[]).await;
    let mut reader = client.follow(&id, 0).await;
    let input: Vec<u8> = (0..=255u8).cycle().take(256 * 1024).collect();

    let (written, read) = tokio::join!(client.post(&id, "input", input.clone()), async {
        let mut frames = Vec::new();
        while output_of(&frames, 0).len() < input.len() {
            frames.push(reader.next().await.unwrap());
        }
        output_of(&frames, 0)
    });

    assert_eq!(written.json(), json!({"input_seq": 1}));
    assert_eq!(read, input);
    let large = client.post(&id, "input", vec![0; 256 * 1024 + 1]).await;
    assert_eq!((large.status, large.json()["code"].as_str()), (413, Some("too_large")));
}

#[tokio::test]
async fn input_that_nobody_reads_waits_and_ends_with_the_process() {
    let host = start_agent();
    let client = host.connect().await;
    let id = client.run("sleep", &["1000"]).await;

    let (first, second, _) =
        tokio::join!(client.post(&id, "input", vec![0; 200 * 1024]), client.post(&id, "input", "behind it"), async {
            // Other processes are not held up by it.
            assert_eq!(client.wait(&client.run("true", &[]).await, "leader").await["exit_code"], 0);
            client.delete(&id, 0).await
        });

    assert_eq!((first.status, first.json()["code"].as_str()), (409, Some("process_exited")));
    assert_eq!((second.status, second.json()["code"].as_str()), (409, Some("process_exited")));
}

#[tokio::test]
async fn an_input_that_is_given_up_frees_its_place() {
    let host = start_agent();
    let client = host.connect().await;
    let scratch = Scratch::new();
    let fifo = scratch.path("go");
    let script = format!("mkfifo {0}; cat {0} >/dev/null; cat", fifo.display());
    let id = client.run("sh", &["-c", &script]).await;
    let (response, mut send) = client.open("POST", &format!("/processes/{id}/input")).await;
    support::send_all(&mut send, vec![b'x'; 100 * 1024].into(), true).await.unwrap();
    drop((response, send));

    let (written, _) = tokio::join!(client.post(&id, "input", "after\n"), async {
        until("the shell waits", || fifo.exists()).await;
        tokio::task::spawn_blocking(move || std::fs::write(fifo, "go")).await.unwrap().unwrap();
    });
    client.post(&id, "stdin/close", "").await;
    let output = output_of(&client.frames(&id, 0).await, 0);

    assert_eq!(written.status, 200);
    assert!(output.ends_with(b"after\n"));
}

#[tokio::test]
async fn a_wait_that_is_too_short_is_told_so() {
    let host = start_agent();
    let client = host.connect().await;
    let id = client.run("sleep", &["1000"]).await;

    let answer = client.call("GET", &format!("/processes/{id}/wait?timeout_ms=20"), "").await;
    let bad = client.call("GET", &format!("/processes/{id}/wait?scope=all"), "").await;

    assert_eq!((answer.status, answer.json()["code"].as_str()), (408, Some("wait_timeout")));
    assert_eq!(bad.status, 400);
    assert_eq!(client.process(&id).await["state"], "running");
}

#[tokio::test]
async fn after_its_end_a_process_takes_nothing_more() {
    let host = start_agent();
    let client = host.connect().await;
    let id = client.run("true", &[]).await;
    client.wait(&id, "leader").await;

    for (verb, body) in [("input", "x"), ("stdin/close", ""), ("signal", r#"{"signal":"SIGTERM"}"#)] {
        let answer = client.post(&id, verb, body).await;
        assert_eq!((answer.status, answer.json()["code"].as_str()), (409, Some("process_exited")), "{verb}");
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
async fn a_start_whose_caller_leaves_is_found_in_the_list() {
    let host = start_agent();
    let client = host.connect().await;
    let (response, mut send) = client.open("POST", "/processes").await;
    send.send_data(json!({"cmd": "sleep", "args": ["1000"]}).to_string().into(), true).unwrap();
    // The host leaves without waiting for the answer; the request is on its way before the next hello.
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
async fn sixty_four_live_and_no_more_and_ended_records_make_room() {
    let host = start_agent();
    let client = host.connect().await;
    let mut ids = Vec::new();
    for _ in 0..64 {
        ids.push(client.run("cat", &[]).await);
    }

    let refused = client.call("POST", "/processes", r#"{"cmd":"true"}"#).await;
    assert_eq!((refused.status, refused.json()["code"].as_str()), (429, Some("process_limit_reached")));

    // All of them work, at once.
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
    let kept: Vec<String> = list["processes"].as_array().unwrap().iter().map(id_of).collect();
    assert_eq!(kept.len(), 64);
    assert!(!kept.contains(&ids[3]), "the oldest ended one is gone");
    assert_eq!(client.call("GET", &format!("/processes/{}", ids[3]), "").await.status, 404);
    let pids: Vec<i64> = list["processes"].as_array().unwrap().iter().map(|one| one["pid"].as_i64().unwrap()).collect();
    drop((client, host));
    until("all are killed with their agent", || !pids.iter().any(|pid| is_alive(*pid))).await;
}

#[tokio::test]
async fn a_long_command_line_is_run_whole_and_kept_short() {
    let host = start_agent();
    let client = host.connect().await;
    let long = "x".repeat(100_000);

    let started =
        client.start(json!({"cmd": "sh", "args": ["-c", "echo ${#1}", "sh", long], "env": null, "pty": null})).await;

    assert_eq!(started["args"], json!(["-c", "echo ${#1}", "sh", "…"]));
    assert_eq!(output_of(&client.frames(&id_of(&started), 0).await, 0), b"100000\n");
}

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::json;
use support::{Scratch, frame, is_alive, noise, send_all, session_members, start_agent, until};

#[tokio::test]
async fn output_of_both_kinds_and_the_exit_code_arrive() {
    let host = start_agent();
    let client = host.connect().await;

    let ran = client.exec(json!({"cmd": "sh", "args": ["-c", "echo out; echo err >&2; exit 3"]})).await;

    assert_eq!(ran.out(), "out\n");
    assert_eq!(ran.stderr, b"err\n");
    assert_eq!(ran.exit, Some(json!({"code": 3, "timed_out": false})));
    assert!(ran.started.unwrap()["pid"].as_i64().unwrap() > 0);
}

#[tokio::test]
async fn a_death_by_signal_is_reported_as_a_signal() {
    let host = start_agent();
    let client = host.connect().await;

    let ran = client.exec(json!({"cmd": "sh", "args": ["-c", "kill -TERM $$"]})).await;

    assert_eq!(ran.exit, Some(json!({"signal": 15, "timed_out": false})));
}

#[tokio::test]
async fn a_program_that_cannot_start_is_reported_with_the_reason_and_without_an_exit() {
    let host = start_agent();
    let scratch = Scratch::new();
    std::fs::write(scratch.path("plain"), "no program").unwrap();
    let client = host.connect().await;
    let kind = async |cmd: &str, cwd: Option<&str>| {
        let ran = client.exec(json!({"cmd": cmd, "cwd": cwd})).await;
        assert!(ran.exit.is_none() && ran.started.is_none());
        ran.error.unwrap()["kind"].as_str().unwrap().to_owned()
    };

    assert_eq!(kind("no-such-command", None).await, "not_found");
    assert_eq!(kind("/no/such/command", None).await, "not_found");
    assert_eq!(kind(scratch.path("plain").to_str().unwrap(), None).await, "not_executable");
    assert_eq!(kind("/", None).await, "not_executable");
    assert_eq!(kind("true", Some("/no/such/directory")).await, "other");
    assert_eq!(kind(&"x".repeat(5000), None).await, "other");
}

#[tokio::test]
async fn a_script_without_an_interpreter_line_runs_in_the_shell() {
    let host = start_agent();
    let scratch = Scratch::new();
    std::fs::write(scratch.path("script"), "echo \"$0:$1\"\n").unwrap();
    std::fs::set_permissions(scratch.path("script"), PermissionsExt::from_mode(0o755)).unwrap();
    let client = host.connect().await;

    let ran = client.exec(json!({"cmd": scratch.path("script"), "args": ["one"]})).await;

    assert_eq!(ran.out(), format!("{}:one\n", scratch.path("script").display()));
}

#[tokio::test]
async fn the_environment_has_the_defaults_then_the_sandbox_then_the_request() {
    let host = start_agent();
    let client = host.connect().await;
    host.agent.set_envs([("A".into(), "sandbox".into()), ("B".into(), "sandbox".into())].into());

    let ran = client.exec(json!({"cmd": "env", "env": {"B": "request"}})).await;

    let mut lines: Vec<String> = ran.out().lines().map(str::to_owned).collect();
    lines.sort();
    let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    assert_eq!(lines, ["A=sandbox", "B=request", "HOME=/root", "LOGNAME=root", path, "USER=root"]);
}

#[tokio::test]
async fn the_path_of_the_request_is_searched() {
    let host = start_agent();
    let client = host.connect().await;

    let ran = client.exec(json!({"cmd": "true", "env": {"PATH": "/nowhere"}})).await;

    assert_eq!(ran.error.unwrap()["kind"], "not_found");
}

#[tokio::test]
async fn the_program_starts_without_inherited_descriptors_and_signal_state() {
    let host = start_agent();
    let client = host.connect().await;
    // Each program inspects itself: a shell in between would add pipes and blocked signals.
    let run =
        async |cmd: &str, args: &[&str]| client.exec(json!({"cmd": cmd, "args": args, "cwd": "/usr"})).await.out();

    assert_eq!(run("ls", &["/proc/self/fd"]).await, "0\n1\n2\n3\n", "the last is that of ls itself");
    assert_eq!(run("grep", &["^SigBlk", "/proc/self/status"]).await, "SigBlk:\t0000000000000000\n");
    // Ordinary signals only; those reserved for threads cannot be set.
    let ignored = run("grep", &["^SigIgn", "/proc/self/status"]).await;
    let ignored = u64::from_str_radix(ignored.trim().trim_start_matches("SigIgn:\t"), 16).unwrap();
    assert_eq!(ignored & 0x7fff_ffff, 0);
    assert_eq!(run("cat", &["/proc/self/oom_score_adj"]).await, "0\n");
    let numbers = run("cut", &["-d", " ", "-f", "1,5,6", "/proc/self/stat"]).await;
    let pid = numbers.split(' ').next().unwrap();
    assert_eq!(numbers, format!("{pid} {pid} {pid}\n"), "leads its own group and session");
    assert_eq!(run("pwd", &[]).await, "/usr\n");
}

#[tokio::test]
async fn a_large_stdin_is_passed_completely() {
    let host = start_agent();
    let client = host.connect().await;
    let input = noise(8 << 20, 3);
    let mut body = frame(3, json!({"cmd": "cat", "stdin": true}).to_string().as_bytes()).to_vec();
    for piece in input.chunks(100_000) {
        body.extend_from_slice(&frame(0, piece));
    }
    let (response, mut send) = client.open("POST", "/exec").await;

    let reading = async { support::read_all(response.await.unwrap().into_body()).await };
    let (_, response) = tokio::join!(send_all(&mut send, body.into(), true), reading);

    let ran = support::Ran::parse(response);
    assert_eq!(ran.code(), Some(0));
    assert!(ran.stdout == input);
}

#[tokio::test]
async fn unread_stdin_does_not_delay_the_exit() {
    let host = start_agent();
    let client = host.connect().await;
    let command = frame(3, json!({"cmd": "true", "stdin": true}).to_string().as_bytes());
    let body = [command, frame(0, &noise(4 << 20, 5))].concat();

    let ran = client.exec_body(body.into()).await;

    assert_eq!(ran.code(), Some(0));
}

#[tokio::test]
async fn without_stdin_the_program_reads_end_of_file() {
    let host = start_agent();
    let client = host.connect().await;

    let ran = client.exec(json!({"cmd": "cat"})).await;

    assert_eq!((ran.code(), ran.stdout), (Some(0), vec![]));
}

#[tokio::test]
async fn a_body_with_malformed_frames_is_rejected() {
    let host = start_agent();
    let client = host.connect().await;
    let status = async |body: Bytes| client.call("POST", "/exec", body).await.status;

    assert_eq!(status(Bytes::new()).await, 400);
    assert_eq!(status(frame(3, b"{}")).await, 400);
    assert_eq!(status(frame(0, b"early")).await, 400);
    assert_eq!(status(frame(3, br#"{"cmd":"true"}"#).slice(..9)).await, 400);
    assert_eq!(status(Bytes::from_static(&[3, 255, 255, 255, 255])).await, 400);
    assert_eq!(status(frame(3, br#"{"cmd":"a\u0000b"}"#)).await, 400);
    assert_eq!(status(frame(3, br#"{"cmd":"true","env":{"A=B":"c"}}"#)).await, 400);
}

#[tokio::test]
async fn a_background_child_that_holds_the_pipes_keeps_the_exec_open() {
    let host = start_agent();
    let client = host.connect().await;
    let started = Instant::now();

    let ran = client.exec(json!({"cmd": "sh", "args": ["-c", "(sleep 0.3; echo late) & echo early"]})).await;

    assert_eq!(ran.out(), "early\nlate\n");
    assert_eq!(ran.code(), Some(0));
    assert!(started.elapsed() >= Duration::from_millis(300));
}

#[tokio::test]
async fn a_detached_child_survives_the_exec() {
    let host = start_agent();
    let client = host.connect().await;

    let ran = client.exec(json!({"cmd": "sh", "args": ["-c", "sleep 30 >/dev/null 2>&1 & echo $!"]})).await;

    let pid: i64 = ran.out().trim().parse().unwrap();
    assert!(is_alive(pid));
    let stopped = client.exec(json!({"cmd": "kill", "args": ["-9", pid.to_string()]})).await;
    assert_eq!(stopped.code(), Some(0));
}

#[tokio::test]
async fn the_timeout_kills_the_whole_group() {
    let host = start_agent();
    let client = host.connect().await;
    let script = "sleep 1000 & echo begun; sleep 1000";

    let ran = client.exec(json!({"cmd": "sh", "args": ["-c", script], "timeout_ms": 200})).await;

    assert_eq!(ran.out(), "begun\n");
    assert_eq!(ran.exit, Some(json!({"signal": 9, "timed_out": true})));
    let pid = ran.started.unwrap()["pid"].as_i64().unwrap();
    until("all processes have exited", || session_members(pid) == 0).await;
}

#[tokio::test]
async fn concurrent_execs_each_get_their_own_response() {
    let host = start_agent();
    let client = host.connect().await;
    let one = |number: usize| {
        let client = &client;
        async move {
            let script = format!("cat; echo {number}; exit {}", number % 200);
            let command = frame(3, json!({"cmd": "sh", "args": ["-c", script], "stdin": true}).to_string().as_bytes());
            let ran = client.exec_body([command, frame(0, b"in ")].concat().into()).await;
            (ran.out(), ran.code())
        }
    };

    let responses = join_all((0..240).map(one)).await;

    for (number, response) in responses.into_iter().enumerate() {
        assert_eq!(response, (format!("in {number}\n"), Some(number as i64 % 200)));
    }
}

/// Like join_all of the futures crate, which is not worth a dependency.
async fn join_all<T>(futures: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut running: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        let mut pending = false;
        for (future, result) in &mut running {
            if result.is_none() {
                match future.as_mut().poll(context) {
                    std::task::Poll::Ready(value) => *result = Some(value),
                    std::task::Poll::Pending => pending = true,
                }
            }
        }
        if pending { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
    })
    .await;
    running.into_iter().filter_map(|(_, result)| result).collect()
}

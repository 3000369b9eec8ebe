#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use serde_json::json;
use support::processes_client::{Frame, id_of, output_of};
use support::{Scratch, start_agent, until};

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
    // The end of its input may already have made it exit.
    for response in [closed_twice, too_late] {
        assert_eq!(response.status, 409);
        assert!(["stdin_closed", "process_exited"].contains(&response.json()["code"].as_str().unwrap()));
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
async fn unread_input_waits_and_fails_when_the_process_exits() {
    let host = start_agent();
    let client = host.connect().await;
    let id = client.run("sleep", &["1000"]).await;

    let (first, second, _) =
        tokio::join!(client.post(&id, "input", vec![0; 200 * 1024]), client.post(&id, "input", "behind it"), async {
            // Other processes are not blocked by it.
            assert_eq!(client.wait(&client.run("true", &[]).await, "leader").await["exit_code"], 0);
            client.delete(&id, 0).await
        });

    assert_eq!((first.status, first.json()["code"].as_str()), (409, Some("process_exited")));
    assert_eq!((second.status, second.json()["code"].as_str()), (409, Some("process_exited")));
}

#[tokio::test]
async fn input_of_a_program_that_has_closed_its_stdin_is_refused() {
    let host = start_agent();
    let client = host.connect().await;
    let id = client.run("sh", &["-c", "exec <&-; echo closed; exec sleep 1000"]).await;
    let mut reader = client.follow(&id, 0).await;
    while !matches!(reader.next().await.unwrap(), Frame::Output { .. }) {}

    let refused = client.post(&id, "input", "x").await;

    assert_eq!((refused.status, refused.json()["code"].as_str()), (409, Some("stdin_closed")));
}

#[tokio::test]
async fn an_input_whose_caller_disconnects_gives_up_its_turn() {
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

//! Process trees: everything that a process has started, however it forked.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use guest_agent::process_tree::ProcessTree;
use serde_json::json;
use support::processes_client::{Frame, number_in, output_of};
use support::{Scratch, is_alive, start_agent, until};

/// Without a writable cgroup v2 hierarchy trees are tracked by session, and daemons escape; /ready reports that.
async fn has_cgroups(client: &support::Client) -> bool {
    client.call("GET", "/ready", "").await.json()["process_trees"] == "cgroup"
}

/// A traditional daemon: forks twice, creates a session, closes its terminal and pipes, and writes its pid.
fn daemon(scratch: &Scratch) -> String {
    let file = scratch.path("daemon").display().to_string();
    format!("setsid sh -c 'sh -c \"echo \\$\\$ > {file}; exec sleep 1000\" >/dev/null 2>&1 &' >/dev/null 2>&1")
}

#[tokio::test]
async fn a_daemon_that_outlives_its_leader_is_tracked_waited_for_and_killed() {
    let host = start_agent();
    let client = host.connect().await;
    if !has_cgroups(&client).await {
        return;
    }
    let scratch = Scratch::new();
    let id = client.run("sh", &["-c", &format!("{}; exit 7", daemon(&scratch))]).await;

    let ended = client.wait(&id, "leader").await;
    let pid = number_in(&scratch.path("daemon")).await;
    assert_eq!(
        (&ended["state"], &ended["exit_code"], &ended["tree_exited"]),
        (&json!("exited"), &json!(7), &json!(false))
    );
    let timed_out = client.call("GET", &format!("/processes/{id}/wait?scope=tree&timeout_ms=20"), "").await;
    assert_eq!(timed_out.status, 408);

    let (waited, deleted) = tokio::join!(client.wait(&id, "tree"), client.delete(&id, 1000));

    assert!(!is_alive(pid));
    for record in [waited, deleted, client.delete(&id, 0).await] {
        assert_eq!(
            (&record["state"], &record["exit_code"], &record["tree_exited"]),
            (&json!("exited"), &json!(7), &json!(true))
        );
    }
}

#[tokio::test]
async fn a_tree_that_exits_on_its_own_is_noticed() {
    let host = start_agent();
    let client = host.connect().await;
    let id = client.run("sh", &["-c", "sleep 0.1 >/dev/null 2>&1 & exit 0"]).await;
    assert_eq!(client.wait(&id, "leader").await["tree_exited"], false);

    let ended = client.wait(&id, "tree").await;

    assert_eq!((&ended["exit_code"], &ended["tree_exited"]), (&json!(0), &json!(true)));
}

#[tokio::test]
async fn delete_sends_sigterm_first_and_kills_processes_that_ignore_it() {
    let host = start_agent();
    let client = host.connect().await;
    let polite = client.run("sh", &["-c", "trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 0.01; done"]).await;
    let deaf = client.run("sh", &["-c", "trap '' TERM; echo up; while :; do sleep 0.01; done"]).await;
    let plain = client.run("sleep", &["1000"]).await;
    client.follow(&polite, 0).await.until_text("up").await;
    client.follow(&deaf, 0).await.until_text("up").await;

    let (polite, deaf, plain, state) = tokio::join!(
        client.delete(&polite, 60_000),
        client.delete(&deaf, 200),
        client.delete(&plain, 60_000),
        client.until_process("it is terminating", &deaf, |record| record["state"] == "terminating"),
    );

    assert_eq!(state["leader_exited"], false);
    assert_eq!((&polite["exit_code"], polite.get("signal")), (&json!(5), None), "its own end is not made up");
    assert_eq!((&deaf["exit_code"], &deaf["signal"]), (&json!(null), &json!("SIGKILL")));
    assert_eq!((&plain["exit_code"], &plain["signal"]), (&json!(null), &json!("SIGTERM")));
    for record in [polite, deaf, plain] {
        assert_eq!((&record["state"], &record["tree_exited"]), (&json!("exited"), &json!(true)));
    }
}

#[tokio::test]
async fn a_delete_continues_when_its_caller_disconnects() {
    let host = start_agent();
    let client = host.connect().await;
    let id = client.run("sh", &["-c", "trap '' TERM; echo up; while :; do sleep 0.01; done"]).await;
    client.follow(&id, 0).await.until_text("up").await;
    let (response, mut send) = client.open("DELETE", &format!("/processes/{id}?grace_ms=100")).await;
    send.send_data(bytes::Bytes::new(), true).unwrap();
    client.until_process("it is terminating", &id, |record| record["state"] == "terminating").await;
    drop((response, send, client));

    let next = host.connect().await;

    assert_eq!(next.wait(&id, "tree").await["signal"], "SIGKILL");
}

#[tokio::test]
async fn a_grace_period_over_a_minute_is_rejected() {
    let host = start_agent();
    let client = host.connect().await;
    let id = client.run("sleep", &["1000"]).await;

    assert_eq!(client.call("DELETE", &format!("/processes/{id}?grace_ms=60001"), "").await.status, 400);
    assert_eq!(client.call("DELETE", &format!("/processes/{id}?grace_ms=-1"), "").await.status, 400);
    assert_eq!(client.process(&id).await["state"], "running");
}

#[tokio::test]
async fn a_fork_bomb_is_killed_completely() {
    let host = start_agent();
    let client = host.connect().await;
    if !has_cgroups(&client).await {
        return;
    }
    // Each creates two processes in separate sessions, five generations deep, and all stay alive.
    let bomb = "if [ $1 -gt 0 ]; then setsid sh -c \"$0\" \"$0\" $(($1-1)) & setsid sh -c \"$0\" \"$0\" $(($1-1)) & fi; echo x; sleep 1000";
    let id = client.run("sh", &["-c", bomb, bomb, "5"]).await;
    client
        .until_process("all have written output", &id, |record| record["output"]["bytes"].as_i64() >= Some(2 * 63))
        .await;

    let record = client.delete(&id, 0).await;

    assert_eq!((&record["signal"], &record["tree_exited"]), (&json!("SIGKILL"), &json!(true)));
}

#[tokio::test]
async fn the_exit_is_reported_while_a_descendant_holds_the_pipes_and_its_later_output_is_recorded() {
    let host = start_agent();
    let client = host.connect().await;
    let scratch = Scratch::new();
    let go = scratch.path("go");
    let later = "later output";
    let script = format!("mkfifo {0}; (echo held; cat {0}) & echo leader; exit 4", go.display());
    let id = client.run("sh", &["-c", &script]).await;

    let frames = client.frames(&id, 0).await;

    assert_eq!(frames.last(), Some(&Frame::Exit(json!({"exit_code": 4}))));
    assert_eq!(client.process(&id).await["tree_exited"], false);
    let written = output_of(&frames, 0).len() as u64;
    tokio::task::spawn_blocking(move || std::fs::write(go, later)).await.unwrap().unwrap();
    client.wait(&id, "tree").await;
    let record = client
        .until_process("all output is recorded", &id, |one| one["output"]["bytes"] == written + later.len() as u64)
        .await;
    let again = client.frames(&id, record["output"]["newest_seq"].as_u64().unwrap() - 1).await;
    assert!(matches!(&again[0], Frame::Output { bytes, .. } if bytes == later));
    assert_eq!(again[1], Frame::Exit(json!({"exit_code": 4})));
}

#[tokio::test]
async fn the_cgroup_of_an_exited_tree_is_removed() {
    let host = start_agent();
    let client = host.connect().await;
    if !has_cgroups(&client).await {
        return;
    }
    let id = client.run("true", &[]).await;

    client.wait(&id, "tree").await;

    let root = host.agent.trees.root().unwrap().to_path_buf();
    assert!(!root.join(&id).exists());
    drop((client, host));
    until("the agent's cgroup is removed too", || !root.exists()).await;
}

/// The fallback for a machine without cgroup v2.
#[tokio::test]
async fn a_session_is_tracked_and_killed_by_its_id() {
    let host = start_agent();
    let client = host.connect().await;
    let id = client.run("sh", &["-c", "sh -c 'echo up; sleep 1000' & wait"]).await;
    client.follow(&id, 0).await.until_text("up").await;
    let tree = ProcessTree::Session(client.process(&id).await["pid"].as_i64().unwrap() as i32);
    assert!(!tree.is_empty());

    tree.kill();

    assert_eq!(client.wait(&id, "tree").await["signal"], "SIGKILL");
    until("the session is empty", || tree.is_empty()).await;
}

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use bytes::Bytes;
use h2::{RecvStream, SendStream};
use support::processes_client::number_in;
use support::{Client, Scratch, frame, is_alive, send_all, start_agent, until};

struct Shell {
    send: SendStream<Bytes>,
    body: RecvStream,
    shown: String,
}

async fn open(client: &Client) -> Shell {
    let (response, send) = client.open("POST", "/shell").await;
    let response = response.await.unwrap();
    assert_eq!(response.status(), 200);
    Shell { send, body: response.into_body(), shown: String::new() }
}

impl Shell {
    async fn type_text(&mut self, text: &str) {
        send_all(&mut self.send, frame(0, text.as_bytes()), false).await.unwrap();
    }

    async fn resize(&mut self, rows: u16, cols: u16) {
        let payload = [rows.to_be_bytes(), cols.to_be_bytes()].concat();
        send_all(&mut self.send, frame(1, &payload), false).await.unwrap();
    }

    async fn until_shown(&mut self, wanted: &str) {
        while !self.shown.contains(wanted) {
            let chunk = self.body.data().await.unwrap_or_else(|| panic!("no {wanted:?} in {:?}", self.shown)).unwrap();
            self.body.flow_control().release_capacity(chunk.len()).unwrap();
            self.shown.push_str(&String::from_utf8_lossy(&chunk));
        }
    }

    /// Returns true if it ended cleanly, false if it was reset.
    async fn ends(mut self) -> bool {
        while let Some(chunk) = self.body.data().await {
            match chunk {
                Ok(chunk) => self.body.flow_control().release_capacity(chunk.len()).unwrap(),
                Err(_) => return false,
            }
        }
        true
    }
}

#[tokio::test]
async fn a_login_shell_runs_commands_has_a_size_and_exits() {
    let host = start_agent();
    let client = host.connect().await;
    let mut shell = open(&client).await;

    shell.type_text("stty size; echo na''me:$0 $TERM\n").await;
    shell.until_shown("24 80").await;
    shell.until_shown("name:-").await;
    shell.until_shown("xterm-256color").await;
    shell.resize(50, 132).await;
    shell.type_text("stty size\nexit\n").await;
    shell.until_shown("50 132").await;

    assert!(shell.ends().await);
}

#[tokio::test]
async fn a_resize_may_come_first_and_frames_may_be_split_anywhere() {
    let host = start_agent();
    let client = host.connect().await;
    let mut shell = open(&client).await;
    let bytes = [frame(1, &[0, 40, 0, 100]), frame(0, b"stty size\n"), frame(0, b"")].concat();

    for byte in bytes {
        shell.send.send_data(Bytes::copy_from_slice(&[byte]), false).unwrap();
        tokio::task::yield_now().await;
    }

    shell.until_shown("40 100").await;
}

#[tokio::test]
async fn several_shells_run_side_by_side() {
    let host = start_agent();
    let client = host.connect().await;
    let mut shells = Vec::new();
    for _ in 0..10 {
        shells.push(open(&client).await);
    }

    for (number, shell) in shells.iter_mut().enumerate() {
        shell.type_text(&format!("echo sh''ell {number}.\n")).await;
    }

    for (number, shell) in shells.iter_mut().enumerate() {
        shell.until_shown(&format!("shell {number}.")).await;
    }
}

#[tokio::test]
async fn an_unknown_frame_closes_the_shell() {
    let host = start_agent();
    let client = host.connect().await;
    for bad in [vec![2, 0, 0, 0, 0], vec![0, 0, 16, 0, 1], vec![1, 0, 0, 0, 5]] {
        let mut shell = open(&client).await;
        shell.type_text("echo u''p\n").await;
        shell.until_shown("up").await;

        send_all(&mut shell.send, bad.into(), false).await.unwrap();

        assert!(!shell.ends().await);
    }
}

#[tokio::test]
async fn the_end_of_the_body_exits_a_shell_that_waits_for_a_command() {
    let host = start_agent();
    let client = host.connect().await;
    let mut shell = open(&client).await;
    shell.type_text("echo u''p\n").await;
    shell.until_shown("up").await;

    shell.send.send_data(Bytes::new(), true).unwrap();

    assert!(shell.ends().await);
}

#[tokio::test]
async fn a_shell_is_killed_with_its_stream_and_with_its_host() {
    let host = start_agent();
    let scratch = Scratch::new();
    for how in ["reset", "host"] {
        let client = host.connect().await;
        let mut shell = open(&client).await;
        let (own, child, stays) = (scratch.path("own"), scratch.path("child"), scratch.path("stays"));
        let script = format!(
            "echo $$ > {}; (setsid sh -c 'echo $$ > {}; exec sleep 1000' >/dev/null 2>&1 &); sh -c 'echo $$ > {}; exec sleep 1000'\n",
            own.display(),
            stays.display(),
            child.display()
        );
        shell.type_text(&script).await;
        let (own_pid, child_pid, stays_pid) = (number_in(&own).await, number_in(&child).await, number_in(&stays).await);

        if how == "reset" {
            drop(shell);
        } else {
            drop((shell, client));
            host.connect().await;
        }

        until("the shell was killed", || !is_alive(own_pid)).await;
        until("the program in it was killed", || !is_alive(child_pid)).await;
        assert!(is_alive(stays_pid), "what made its own session stays");
        unsafe { libc::kill(stays_pid as i32, libc::SIGKILL) };
        for file in [own, child, stays] {
            std::fs::remove_file(file).unwrap();
        }
    }
}

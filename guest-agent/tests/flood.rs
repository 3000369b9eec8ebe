//! In a separate test binary, because the memory of other tests would be counted too.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use serde_json::json;
use support::processes_client::{id_of, output_of};
use support::{resident_kib, start_agent};

const FLOODS: usize = 4;

#[tokio::test]
async fn unread_floods_cost_no_more_than_the_journal_limit_and_do_not_block_other_requests() {
    let host = start_agent();
    let client = host.connect().await;
    let before = resident_kib();
    let mut ids = Vec::new();
    for _ in 0..FLOODS {
        ids.push(client.run("yes", &[]).await);
    }
    // Byte by byte: the most expensive way to write.
    let drops = "while :; do printf x; printf y >&2; done";
    ids.push(id_of(&client.start(json!({"cmd": "sh", "args": ["-c", drops], "pty": {}})).await));

    for id in &ids[..FLOODS] {
        client
            .until_process("32 MiB have arrived", id, |record| record["output"]["newest_seq"].as_u64() > Some(1024))
            .await;
    }
    let grown = resident_kib().saturating_sub(before);

    assert!(grown < 16 * 1024, "grew by {grown} KiB");
    assert_eq!(client.exec(json!({"cmd": "echo", "args": ["through"]})).await.out(), "through\n");
    for id in &ids {
        let ended = client.delete(id, 0).await;
        let retained = ended["output"]["bytes"].as_u64().unwrap();
        assert!(retained <= 1024 * 1024);
        let oldest = ended["output"]["oldest_seq"].as_u64().unwrap();
        let frames = client.frames(id, oldest - 1).await;
        // `output_of` also checks that there are no gaps.
        assert_eq!(output_of(&frames, oldest - 1).len() as u64, retained);
    }
}

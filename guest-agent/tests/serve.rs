#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use guest_agent::agent::Agent;
use guest_agent::identity::Identity;
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use support::{Scratch, frame, send_all, start_agent};

#[tokio::test]
async fn ready_reports_version_boot_id_and_clock_source() {
    let host = start_agent();
    let client = host.connect().await;

    let ready = client.call("GET", "/ready", "").await.json();

    assert_eq!(ready["agent_version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(ready["protocol"], 5);
    let woken = client.call("POST", "/wake", "{}").await.json();
    assert_eq!(woken["agent"], json!({"version": env!("CARGO_PKG_VERSION"), "protocol": 5}));
    assert_eq!(ready["boot_id"].as_str().unwrap().len(), 36);
    assert!(ready["uptime_ms"].as_u64().unwrap() > 0);
    assert!(ready["clocksource"].is_string());
}

#[tokio::test]
async fn unknown_endpoints_and_invalid_bodies_get_a_json_error() {
    let host = start_agent();
    let client = host.connect().await;

    let unknown = client.call("GET", "/nothing", "").await;
    let broken = client.call("POST", "/wake", "{").await;
    let large = client.call("POST", "/identity", vec![b' '; 2 << 20]).await;

    assert_eq!((unknown.status, unknown.json()["code"].as_str().unwrap()), (404, "not_found"));
    assert_eq!((broken.status, broken.json()["code"].as_str().unwrap()), (400, "invalid"));
    assert_eq!((large.status, large.json()["code"].as_str().unwrap()), (413, "too_large"));
    assert_eq!(client.call("GET", "/ready", "").await.status, 200);
}

#[tokio::test]
async fn a_stalled_upload_and_a_stalled_command_do_not_block_others() {
    let host = start_agent();
    let scratch = Scratch::new();
    let client = host.connect().await;
    let mut stalled = Vec::new();
    for number in 0..100 {
        let (response, mut send) = client.open("POST", "/exec").await;
        let command = frame(3, br#"{"cmd":"sleep","args":["1000"],"stdin":true}"#);
        send_all(&mut send, [command, frame(0, &[0; 180 * 1024])].concat().into(), false).await.unwrap();
        let (waiting, upload) = client.open("PUT", &scratch.url(&number.to_string())).await;
        stalled.push((response, send, waiting, upload));
    }

    let ran = client.exec(json!({"cmd": "echo", "args": ["through"]})).await;

    assert_eq!(ran.out(), "through\n");
}

#[test]
fn an_identity_is_applied_and_read_back() {
    let scratch = Scratch::new();
    for directory in ["etc/ssh", "root/.ssh", "var/lib/dbus"] {
        fs::create_dir_all(scratch.path(directory)).unwrap();
    }
    fs::write(scratch.path("etc/hosts"), "127.0.0.1 localhost\n10.0.0.1 mine\n").unwrap();
    fs::write(scratch.path("etc/ssh/ssh_host_rsa_key"), "old").unwrap();
    fs::write(scratch.path("etc/ssh/sshd_config"), "kept").unwrap();
    fs::write(scratch.path("var/lib/dbus/machine-id"), "old").unwrap();
    fs::write(scratch.path("root/.ssh/authorized_keys"), "ssh-rsa OWN me\n").unwrap();
    std::os::unix::fs::symlink("../run/nowhere", scratch.path("etc/resolv.conf")).unwrap();
    let identity = Identity { root: scratch.0.clone(), is_init: false };
    let agent = Agent::new(false);
    let wanted = json!({
        "address": "100.64.0.7",
        "hostname": "quiet-otter",
        "machine_id": "0123456789abcdef0123456789abcdef",
        "envs": {"A": "1"},
        "ssh_pubkeys": ["ssh-ed25519 NEW a", "ssh-ed25519 NEW a", "ssh-rsa OWN me"],
        "renew_ssh_host_keys": true,
        "mtu": 1400,
        "nameserver": "169.254.1.1",
        "hosts": [{"ip": "172.30.0.9", "names": ["peer", "peer.local"]}],
    });

    for _ in 0..2 {
        let response = identity.apply(&agent, serde_json::from_value(wanted.clone()).unwrap()).unwrap();

        let expected = json!({
            "address": "100.64.0.7",
            "hostname": "quiet-otter",
            "machine_id": "0123456789abcdef0123456789abcdef",
            "env_names": ["A"],
            "ssh_pubkeys": 2,
            "ssh_host_keys_left": 0,
            "mtu": 1400,
            "nameserver": "169.254.1.1",
            "hosts": 2,
        });
        assert_eq!(serde_json::to_value(response).unwrap(), expected);
    }
    let hosts = fs::read_to_string(scratch.path("etc/hosts")).unwrap();
    assert!(hosts.starts_with("127.0.0.1 localhost\n10.0.0.1 mine\n"));
    assert_eq!(hosts.matches("172.30.0.9 peer peer.local\n").count(), 1);
    assert_eq!(hosts.matches("100.64.0.7 quiet-otter\n").count(), 1);
    assert_eq!(fs::read_to_string(scratch.path("etc/resolv.conf")).unwrap(), "nameserver 169.254.1.1\n");
    assert_eq!(fs::read_to_string(scratch.path("etc/ssh/sshd_config")).unwrap(), "kept");
    let keys = fs::metadata(scratch.path("root/.ssh/authorized_keys")).unwrap();
    assert_eq!(keys.permissions().mode() & 0o777, 0o600);
}

#[test]
fn an_identity_that_would_corrupt_a_file_is_rejected() {
    let scratch = Scratch::new();
    fs::create_dir_all(scratch.path("etc")).unwrap();
    let identity = Identity { root: scratch.0.clone(), is_init: false };
    let agent = Agent::new(false);
    for wanted in [
        json!({"hostname": "a\nb"}),
        json!({"hostname": ""}),
        json!({"machine_id": "short"}),
        json!({"hosts": [{"ip": "10.0.0.1", "names": ["a b"]}]}),
    ] {
        assert!(identity.apply(&agent, serde_json::from_value(wanted).unwrap()).is_err());
    }
    assert_eq!(fs::read_dir(scratch.path("etc")).unwrap().count(), 0);
}

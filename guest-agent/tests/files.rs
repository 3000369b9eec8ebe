#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use bytes::Bytes;
use support::{Scratch, noise, resident_kib, send_all, start_agent, until};

fn mode(path: &std::path::Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[tokio::test]
async fn a_large_file_is_uploaded_and_downloaded_unchanged_with_constant_memory() {
    let host = start_agent();
    let scratch = Scratch::new();
    let client = host.connect().await;
    let content = noise(64 << 20, 11);

    let put = client.call("PUT", &scratch.url("large"), content.clone()).await;
    let stored = fs::read(scratch.path("large")).unwrap() == content;
    let before = resident_kib();
    let got = client.call("GET", &scratch.url("large"), "").await;

    assert_eq!((put.status, put.json()["bytes"].as_u64()), (200, Some(64 << 20)));
    assert!(stored);
    assert_eq!(got.head.headers()["content-length"], (64 << 20).to_string().as_str());
    assert!(got.body == content);
    // The test itself holds the 64 MiB that it received, in a buffer that doubles.
    assert!(resident_kib() < before + 200 * 1024);
}

#[tokio::test]
async fn a_new_file_has_the_default_mode_and_its_parents_are_created() {
    let host = start_agent();
    let scratch = Scratch::new();
    let client = host.connect().await;

    let put = client.call("PUT", &scratch.url("a/b/c.txt"), "hello").await;

    assert_eq!(put.status, 200);
    assert_eq!(fs::read(scratch.path("a/b/c.txt")).unwrap(), b"hello");
    assert_eq!((mode(&scratch.path("a")), mode(&scratch.path("a/b/c.txt"))), (0o755, 0o644));
}

#[tokio::test]
async fn an_existing_file_keeps_its_mode_and_owner_and_no_temporary_file_remains() {
    let host = start_agent();
    let scratch = Scratch::new();
    fs::write(scratch.path("tool"), "old").unwrap();
    fs::set_permissions(scratch.path("tool"), PermissionsExt::from_mode(0o4751)).unwrap();
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    if is_root {
        std::os::unix::fs::chown(scratch.path("tool"), Some(1234), Some(4321)).unwrap();
        fs::set_permissions(scratch.path("tool"), PermissionsExt::from_mode(0o4751)).unwrap();
    }
    let client = host.connect().await;

    let put = client.call("PUT", &scratch.url("tool"), "new").await;

    assert_eq!(put.status, 200);
    assert_eq!(fs::read(scratch.path("tool")).unwrap(), b"new");
    assert_eq!(mode(&scratch.path("tool")), 0o4751);
    let metadata = fs::metadata(scratch.path("tool")).unwrap();
    assert!(!is_root || (metadata.uid(), metadata.gid()) == (1234, 4321));
    assert_eq!(scratch.names(), ["tool"]);
}

#[tokio::test]
async fn an_empty_body_creates_an_empty_file() {
    let host = start_agent();
    let scratch = Scratch::new();
    let client = host.connect().await;

    let put = client.call("PUT", &scratch.url("empty"), "").await;
    let got = client.call("GET", &scratch.url("empty"), "").await;

    assert_eq!((put.status, got.status, got.body.len()), (200, 200, 0));
}

#[tokio::test]
async fn a_write_follows_symbolic_links_like_the_shell() {
    let host = start_agent();
    let scratch = Scratch::new();
    fs::write(scratch.path("real"), "old").unwrap();
    symlink("real", scratch.path("link")).unwrap();
    symlink(scratch.path("not/yet"), scratch.path("dangling")).unwrap();
    symlink("loop", scratch.path("loop")).unwrap();
    let client = host.connect().await;

    assert_eq!(client.call("PUT", &scratch.url("link"), "new").await.status, 200);
    assert_eq!(client.call("PUT", &scratch.url("dangling"), "made").await.status, 200);
    assert_eq!(client.call("PUT", &scratch.url("loop"), "x").await.status, 400);

    assert_eq!(fs::read(scratch.path("real")).unwrap(), b"new");
    assert_eq!(fs::read(scratch.path("not/yet")).unwrap(), b"made");
    assert!(fs::symlink_metadata(scratch.path("link")).unwrap().is_symlink());
}

#[tokio::test]
async fn an_upload_that_is_reset_keeps_the_old_file_and_leaves_nothing_behind() {
    let host = start_agent();
    let scratch = Scratch::new();
    fs::write(scratch.path("old"), "old").unwrap();
    let client = host.connect().await;
    for name in ["old", "new", "deep/er/new"] {
        let (response, mut send) = client.open("PUT", &scratch.url(name)).await;
        send_all(&mut send, noise(1 << 20, 1), false).await.unwrap();

        send.send_reset(h2::Reason::CANCEL);

        assert!(response.await.is_err());
    }

    until("the state is as before", || scratch.names() == ["old"]).await;
    assert_eq!(fs::read(scratch.path("old")).unwrap(), b"old");
}

#[tokio::test]
async fn a_path_that_is_not_a_regular_file_is_rejected_without_blocking() {
    let host = start_agent();
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("dir")).unwrap();
    fs::write(scratch.path("file"), "").unwrap();
    let fifo = std::ffi::CString::new(scratch.path("fifo").to_str().unwrap()).unwrap();
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
    let client = host.connect().await;

    for target in [
        scratch.url("dir"),
        scratch.url("fifo"),
        scratch.url("file/below"),
        scratch.url("dir/"),
        scratch.url("dir/../x"),
        "/files?path=/dev/null".into(),
        "/files?path=relative".into(),
        "/files?path=/a%00b".into(),
        format!("/files?path=/{}", "n".repeat(300)),
        "/files".into(),
    ] {
        for method in ["GET", "PUT"] {
            let response = client.call(method, &target, "x").await;
            let rejected = [400, 404].contains(&response.status);
            assert!(rejected, "{method} {target}: {} {:?}", response.status, response.body);
            assert!(response.json()["message"].is_string());
        }
    }
    assert_eq!(scratch.names(), ["dir", "fifo", "file"]);
}

#[tokio::test]
async fn a_missing_file_is_reported_by_its_code() {
    let host = start_agent();
    let scratch = Scratch::new();
    let client = host.connect().await;

    let response = client.call("GET", &scratch.url("missing"), "").await;

    assert_eq!((response.status, response.json()["code"].as_str().unwrap()), (404, "file_not_found"));
}

#[tokio::test]
async fn a_file_is_sent_with_the_length_of_its_content_whatever_the_kernel_reports() {
    let host = start_agent();
    let client = host.connect().await;

    // The kernel reports 0 for the first and the second, and 4096 for the third.
    for path in ["/proc/cpuinfo", "/proc/sys/kernel/ostype", "/sys/kernel/mm/transparent_hugepage/enabled"] {
        let response = client.call("GET", &format!("/files?path={path}"), "").await;

        assert_eq!(response.status, 200, "{path}");
        assert!(response.body == fs::read(path).unwrap(), "{path}");
        assert_eq!(response.head.headers()["content-length"], response.body.len().to_string().as_str(), "{path}");
    }
}

#[tokio::test]
async fn a_long_file_of_proc_is_read_to_its_end_without_a_length() {
    let host = start_agent();
    let client = host.connect().await;

    let response = client.call("GET", "/files?path=/proc/kallsyms", "").await;

    assert_eq!(response.status, 200);
    assert!(response.body.len() > 1 << 20);
    assert!(response.head.headers().get("content-length").is_none());
}

#[tokio::test]
async fn a_file_that_cannot_be_read_or_written_is_refused_with_the_reason() {
    let host = start_agent();
    let scratch = Scratch::new();
    let _socket = std::os::unix::net::UnixListener::bind(scratch.path("socket")).unwrap();
    let client = host.connect().await;

    for (method, target, why) in [
        ("GET", "/files?path=/proc/self/mem", "/proc/self/mem cannot be read: Input/output error"),
        ("GET", "/files?path=/dev/zero", "path is not a regular file"),
        ("GET", &scratch.url("socket"), "path is not a regular file"),
        ("PUT", "/files?path=/proc/version", "/proc/version cannot be written: "),
        ("PUT", "/files?path=/proc/new/folder/file", "/proc/new/folder/file cannot be written: "),
        ("PUT", "/files?path=/proc/self/environ", "/proc/self/environ cannot be written: "),
        ("PUT", "/files?path=/sys/power/state", "/sys/power/state cannot be written: "),
        ("PUT", "/files?path=/dev/full", "path is not a regular file"),
    ] {
        let response = client.call(method, target, "x").await;
        let message = response.json()["message"].as_str().unwrap().to_owned();

        assert_eq!(response.status, 400, "{method} {target}: {message}");
        assert!(message.starts_with(why), "{method} {target}: {message}");
    }
}

#[tokio::test]
async fn the_kernel_log_is_sent_as_far_as_it_can_be_read_without_waiting() {
    let host = start_agent();
    let client = host.connect().await;

    // The first call may read what there is; then there is nothing more.
    for _ in 0..2 {
        let response = client.call("GET", "/files?path=/proc/kmsg", "").await;
        assert!([200, 400].contains(&response.status), "{} {:?}", response.status, response.body);
    }
}

#[tokio::test]
async fn a_full_disk_is_reported_and_nothing_is_left_behind() {
    // SAFETY: without root this would need a separate mount namespace.
    let scratch = Scratch::new();
    let target = std::ffi::CString::new(scratch.0.to_str().unwrap()).unwrap();
    let data = c"size=256k".as_ptr().cast();
    let mounted = unsafe { libc::mount(c"tmpfs".as_ptr(), target.as_ptr(), c"tmpfs".as_ptr(), 0, data) } == 0;
    if !mounted {
        return;
    }
    let host = start_agent();
    let client = host.connect().await;

    let response = client.call("PUT", &scratch.url("large"), Bytes::from(vec![1; 1 << 20])).await;
    let after = client.call("PUT", &scratch.url("small"), "fits").await;

    let names = scratch.names();
    unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
    assert_eq!((response.status, response.json()["code"].as_str().unwrap()), (507, "no_space"));
    assert_eq!((after.status, names), (200, vec!["small".to_owned()]));
}

//! The program, mounted on a folder of this machine.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

use super::server::{Server, TOKEN};

pub struct Mounted {
    pub path: PathBuf,
    pub folder: Folder,
    child: Child,
    input: ChildStdin,
    lines: Receiver<Value>,
    last_id: u64,
}

/// A temporary folder with a mount point and a stage folder.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Self {
        use std::sync::atomic::{AtomicU32, Ordering};
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("bucket-mount-{}-{number}", std::process::id()));
        std::fs::create_dir_all(path.join("mnt")).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.join("mnt")).stderr(Stdio::null()).status();
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Mounted {
    pub fn start(server: &Server) -> Self {
        Self::start_with(server, Folder::new(), json!({}))
    }

    pub fn start_with(server: &Server, folder: Folder, options: Value) -> Self {
        let mounted = Self::launch(server, folder, options);
        let (mut is_mounted, mut is_probed) = (false, false);
        while !(is_mounted && is_probed) {
            let line = mounted.wait_for(|_| true);
            is_mounted |= line["event"] == "mounted";
            is_probed |= line["event"] == "status" && line["status"]["conditions"] != "unknown";
        }
        mounted
    }

    /// It may not know yet whether the server honours conditions.
    pub fn start_unprobed(server: &Server) -> Self {
        let mounted = Self::launch(server, Folder::new(), json!({}));
        mounted.wait_for(|line| line["event"] == "mounted");
        mounted
    }

    fn launch(server: &Server, folder: Folder, options: Value) -> Self {
        let path = folder.0.join("mnt");
        let mut config = json!({
            "address": server.address.to_string(), "token": TOKEN, "mount_point": path,
            "stage_folder": folder.0.join("stage"),
        });
        config.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
        let mut child = Command::new(env!("CARGO_BIN_EXE_bucket-mount"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        writeln!(input, "{config}").unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = sender.send(serde_json::from_str(&line).unwrap());
            }
        });
        Self { path, folder, child, input, lines, last_id: 0 }
    }

    fn wait_for(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            let line = self.lines.recv_timeout(Duration::from_secs(60)).unwrap();
            if wanted(&line) {
                return line;
            }
        }
    }

    pub fn command(&mut self, mut command: Value) -> Value {
        self.last_id += 1;
        command["id"] = json!(self.last_id);
        writeln!(self.input, "{command}").unwrap();
        let id = self.last_id;
        self.wait_for(|line| line["id"] == id)
    }

    pub fn status(&mut self) -> Value {
        self.command(json!({"do": "status"}))["status"].clone()
    }

    /// Ends the program the regular way, and returns its folder.
    pub fn unmount(mut self) -> Folder {
        let answer = self.command(json!({"do": "unmount", "deadline_ms": 20_000}));
        assert_eq!(answer["ok"], true, "{answer}");
        self.child.wait().unwrap();
        self.take_folder()
    }

    /// As if it had crashed. What is open fails from then on.
    pub fn kill(mut self) -> Folder {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
        self.take_folder()
    }

    fn take_folder(&mut self) -> Folder {
        std::mem::replace(&mut self.folder, Folder(PathBuf::from("/nonexistent/bucket-mount")))
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn names(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

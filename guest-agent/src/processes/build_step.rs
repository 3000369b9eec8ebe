//! A step of a template's build is a managed process with what the execution contract of a Dockerfile demands
//! (`dockerfile/src/guest-action.ts`): a user, exactly the given variables, a working directory that is created if it is
//! missing, files that exist only while the step runs, no input.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use http::StatusCode;
use serde::Deserialize;

use crate::folders::{self, unknown_owner};
use crate::kmsg::log;
use crate::owner::{Owner, resolve};
use crate::reply::Failure;
use crate::spawn::{RunAs, describe};

const FOLDER_MODE: u32 = 0o755;

#[derive(Deserialize)]
pub struct BuildStep {
    owner: Owner,
    umask: u32,
    files: Vec<StepFile>,
}

#[derive(Deserialize)]
struct StepFile {
    path: PathBuf,
    mode: u32,
    content: String,
}

pub struct PreparedStep {
    pub run_as: RunAs,
    files: StepFiles,
}

/// Removes the files when it is dropped.
#[derive(Default)]
pub struct StepFiles(Vec<PathBuf>);

impl BuildStep {
    /// Runs on a worker thread. Nothing is added to `env` but HOME.
    pub fn prepare(self, cwd: &str, env: &mut BTreeMap<String, String>) -> Result<PreparedStep, Failure> {
        let owner = resolve(&self.owner).map_err(unknown_owner)?;
        env.entry("HOME".to_owned()).or_insert(owner.home);
        folders::create(Path::new(cwd), FOLDER_MODE, (0, 0))
            .map_err(|error| Failure::new(StatusCode::BAD_REQUEST, "invalid_cwd", describe(&error)))?;
        let mut files = StepFiles::default();
        for file in &self.files {
            files.write(file).map_err(|error| Failure::internal(&file.path.to_string_lossy(), &error))?;
        }
        // With its first group among the others, as docker does: a program that changes its group must not lose the one
        // whose members are denied something.
        let groups = [vec![owner.gid], owner.groups].concat();
        let run_as = RunAs { uid: owner.uid, gid: owner.gid, groups, umask: self.umask & 0o777 };
        Ok(PreparedStep { run_as, files })
    }
}

impl PreparedStep {
    pub fn take_files(&mut self) -> StepFiles {
        std::mem::take(&mut self.files)
    }
}

impl StepFiles {
    fn write(&mut self, file: &StepFile) -> std::io::Result<()> {
        if let Some(folder) = file.path.parent() {
            folders::create(folder, FOLDER_MODE, (0, 0))?;
        }
        self.0.push(file.path.clone());
        let mut options = fs::OpenOptions::new();
        let mut opened = options.write(true).create(true).truncate(true).mode(0o600).open(&file.path)?;
        opened.write_all(file.content.as_bytes())?;
        opened.set_permissions(fs::Permissions::from_mode(file.mode & 0o7777))
    }
}

/// On the event loop, which is short: the files are few, and in /dev, which is memory.
impl Drop for StepFiles {
    fn drop(&mut self) {
        for path in &self.0 {
            match fs::remove_file(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    log(&format!("failed to remove {}: {error}", path.display()));
                }
                _ => {}
            }
        }
    }
}

//! What the guest agent passes to the program: the first line on its standard input, as JSON. The token is not on the
//! command line, where every process could read it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use crate::s3::metadata::Kind;
use crate::s3::transport::TransportLimits;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Address and port of the S3 proxy.
    pub address: SocketAddr,
    pub token: String,
    pub mount_point: PathBuf,
    /// Where unsaved changes are kept, on the guest's own disk. It belongs to this mount alone.
    pub stage_folder: PathBuf,
    /// How users know that folder, which the path above may reach in another way.
    pub shown_stage_folder: Option<PathBuf>,
    #[serde(default = "default_stage_max_mib")]
    pub stage_max_mib: u64,
    #[serde(default)]
    pub read_only: bool,
    /// Owner of files that have none in the bucket.
    #[serde(default)]
    pub uid: u32,
    #[serde(default)]
    pub gid: u32,
    /// Time until the first byte of an answer, and without progress.
    pub answer_limit_ms: Option<u64>,
    /// The same for copies and completions of uploads.
    pub slow_answer_limit_ms: Option<u64>,
}

fn default_stage_max_mib() -> u64 {
    1024
}

impl Config {
    pub fn parse(line: &str) -> Result<Self, String> {
        serde_json::from_str(line).map_err(|error| format!("invalid configuration: {error}"))
    }

    pub fn limits(&self) -> TransportLimits {
        let defaults = TransportLimits::default();
        let duration = |given: Option<u64>, default| given.map_or(default, Duration::from_millis);
        TransportLimits {
            answer: duration(self.answer_limit_ms, defaults.answer),
            slow_answer: duration(self.slow_answer_limit_ms, defaults.slow_answer),
            progress: duration(self.answer_limit_ms, defaults.progress),
        }
    }

    pub fn defaults(&self) -> Defaults {
        Defaults { uid: self.uid, gid: self.gid }
    }
}

/// Attributes of objects that have none.
#[derive(Clone, Copy, Debug)]
pub struct Defaults {
    pub uid: u32,
    pub gid: u32,
}

impl Defaults {
    pub fn mode(&self, kind: Kind) -> u32 {
        match kind {
            Kind::File => 0o644,
            Kind::Directory => 0o755,
            Kind::Link => 0o777,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_address_token_and_folders_are_required() {
        let line = r#"{"address":"10.0.0.1:9000","token":"t","mount_point":"/data","stage_folder":"/var/stage"}"#;

        let config = Config::parse(line).ok();

        assert_eq!(config.as_ref().map(|config| config.stage_max_mib), Some(1024));
        assert_eq!(config.map(|config| config.limits().answer), Some(Duration::from_secs(33)));
        assert!(Config::parse(r#"{"address":"10.0.0.1:9000"}"#).is_err());
        assert!(Config::parse(&line.replace("token", "tokn")).is_err());
    }
}

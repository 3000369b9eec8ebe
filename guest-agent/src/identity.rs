//! POST /identity: sets address, host name, machine id, environment, SSH keys, MTU, names and certificate authorities. Each
//! given field is applied and then read back from where programs will look for it; the response contains the values that
//! were read back. If one field cannot be applied the request fails, and the host does not use such a machine.
//!
//! Files are those of the machine, also where a disk is mounted over them (`own_root.rs`).

use std::collections::BTreeMap;
use std::fs;
use std::io::{Error, Result};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::agent::Agent;
use crate::guest_address::replace_address;
use crate::marked_block::{lines_outside, read_file, render, write_file};
use crate::net;
use crate::reply::{Failure, HandlerResult};
use crate::sys::check;
use crate::trust;

/// Debian's convention for the host name of a machine without a permanent address.
const ADDRESS_BEFORE_IDENTITY: Ipv4Addr = Ipv4Addr::new(127, 0, 1, 1);

#[derive(Deserialize, Default)]
pub struct IdentityRequest {
    address: Option<Ipv4Addr>,
    hostname: Option<String>,
    machine_id: Option<String>,
    envs: Option<BTreeMap<String, String>>,
    ssh_pubkeys: Option<Vec<String>>,
    #[serde(default)]
    renew_ssh_host_keys: bool,
    mtu: Option<u32>,
    nameserver: Option<IpAddr>,
    hosts: Option<Vec<HostEntry>>,
    ca_certificates: Option<Vec<String>>,
    default_envs: Option<BTreeMap<String, String>>,
}

impl IdentityRequest {
    /// Whether this is a clone or a fork, rather than the same machine resumed.
    pub fn is_new_machine(&self) -> bool {
        self.renew_ssh_host_keys
    }
}

#[derive(Deserialize, Clone)]
pub struct HostEntry {
    ip: IpAddr,
    names: Vec<String>,
}

#[derive(Serialize, Default, Debug, PartialEq)]
pub struct IdentityResponse {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Ipv4Addr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env_names: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ssh_pubkeys: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ssh_host_keys_left: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nameserver: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosts: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_certificates: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_env_names: Option<Vec<String>>,
}

/// The directory under which files are written: `/`, or a temporary directory in tests.
pub struct Identity {
    pub root: PathBuf,
    /// Whether kernel settings (address, host name, MTU) may be changed.
    pub is_init: bool,
}

pub async fn apply_on_worker(agent: &Arc<Agent>, request: IdentityRequest) -> HandlerResult<IdentityResponse> {
    let worker = agent.clone();
    let applied = agent.workers.run(move || {
        let identity = Identity { root: worker.own_root.path().into(), is_init: worker.is_init };
        identity.apply(&worker, request)
    });
    Ok(applied.await.map_err(|error| Failure::internal("worker", &error))??)
}

impl Identity {
    pub fn apply(&self, agent: &Agent, request: IdentityRequest) -> std::result::Result<IdentityResponse, Failure> {
        let mut response = IdentityResponse::default();
        if let Some(address) = request.address {
            response.address = Some(self.set_address(agent, address).map_err(apply_error("address"))?);
        }
        if let Some(hostname) = &request.hostname {
            check_hostname(hostname)?;
            response.hostname = Some(self.set_hostname(hostname).map_err(apply_error("hostname"))?);
        }
        if request.hostname.is_some() || request.hosts.is_some() {
            let hosts = request.hosts.unwrap_or_default();
            check_hosts(&hosts)?;
            let hostname = read_file(&self.path("etc/hostname")).map_err(apply_error("hosts"))?;
            response.hosts =
                Some(self.write_hosts((hostname.trim(), agent.address()), &hosts).map_err(apply_error("hosts"))?);
        }
        if let Some(id) = &request.machine_id {
            check_machine_id(id)?;
            response.machine_id = Some(self.set_machine_id(id).map_err(apply_error("machine_id"))?);
        }
        if let Some(nameserver) = request.nameserver {
            response.nameserver = Some(self.write_resolv_conf(nameserver).map_err(apply_error("nameserver"))?);
        }
        if let Some(mtu) = request.mtu {
            response.mtu = Some(self.set_mtu(mtu).map_err(apply_error("mtu"))?);
        }
        if let Some(keys) = &request.ssh_pubkeys {
            response.ssh_pubkeys = Some(self.merge_ssh_keys(keys).map_err(apply_error("ssh_pubkeys"))?);
        }
        if request.renew_ssh_host_keys {
            response.ssh_host_keys_left = Some(self.remove_host_keys().map_err(apply_error("ssh host keys"))?);
        }
        if let Some(certificates) = &request.ca_certificates {
            let installed = trust::install(&self.root, certificates);
            response.ca_certificates = Some(installed.map_err(apply_error("ca_certificates"))?);
        }
        if let Some(envs) = request.default_envs {
            agent.set_default_envs(envs);
            response.default_env_names = Some(agent.default_envs().keys().cloned().collect());
        }
        if let Some(envs) = request.envs {
            agent.set_envs(envs);
            response.env_names = Some(agent.envs().keys().cloned().collect());
        }
        Ok(response)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// Nothing changes if the guest has the address already: after a resume, connections and what the user changed on
    /// the interface are kept.
    fn set_address(&self, agent: &Agent, address: Ipv4Addr) -> Result<Ipv4Addr> {
        let current = agent.address();
        if current == Some(address) {
            return Ok(address);
        }
        let old = current.map_or((net::INITIAL_ADDRESS, net::INITIAL_PREFIX), |address| (address, 32));
        let found = if self.is_init { replace_address(old, address)? } else { address };
        agent.set_address(found);
        Ok(found)
    }

    pub fn set_hostname(&self, hostname: &str) -> Result<String> {
        write_file(&self.path("etc/hostname"), &format!("{hostname}\n"), 0o644)?;
        if !self.is_init {
            return Ok(read_file(&self.path("etc/hostname"))?.trim().to_owned());
        }
        // SAFETY: a buffer with its length.
        check(unsafe { libc::sethostname(hostname.as_ptr().cast(), hostname.len()) })?;
        Ok(fs::read_to_string("/proc/sys/kernel/hostname")?.trim().to_owned())
    }

    /// Adds the standard localhost lines only if the file has none outside the block.
    /// The host name is that of the sandbox's address, so that programs which look it up find where peers reach them.
    pub fn write_hosts(&self, (hostname, address): (&str, Option<Ipv4Addr>), entries: &[HostEntry]) -> Result<usize> {
        let path = self.path("etc/hosts");
        let text = read_file(&path)?;
        let mut lines = Vec::new();
        if !lines_outside(&text).iter().any(|line| line.split_whitespace().any(|word| word == "localhost")) {
            lines.push("127.0.0.1 localhost".to_owned());
            lines.push("::1 localhost ip6-localhost ip6-loopback".to_owned());
        }
        if !hostname.is_empty() {
            lines.push(format!("{} {hostname}", address.unwrap_or(ADDRESS_BEFORE_IDENTITY)));
        }
        lines.extend(entries.iter().map(|entry| format!("{} {}", entry.ip, entry.names.join(" "))));
        write_file(&path, &render(&text, &lines), 0o644)?;
        let text = read_file(&path)?;
        Ok(lines.iter().filter(|line| text.contains(line.as_str())).count())
    }

    fn write_resolv_conf(&self, nameserver: IpAddr) -> Result<IpAddr> {
        let path = self.path("etc/resolv.conf");
        write_file(&path, &format!("nameserver {nameserver}\n"), 0o644)?;
        let text = read_file(&path)?;
        let found = text.strip_prefix("nameserver ").and_then(|rest| rest.trim().parse().ok());
        found.ok_or_else(|| Error::other("resolv.conf differs after writing"))
    }

    fn set_machine_id(&self, id: &str) -> Result<String> {
        write_file(&self.path("etc/machine-id"), &format!("{id}\n"), 0o444)?;
        // D-Bus has a separate copy unless it is a symbolic link to the first.
        let copy = self.path("var/lib/dbus/machine-id");
        if fs::symlink_metadata(&copy).is_ok_and(|found| found.is_file()) {
            write_file(&copy, &format!("{id}\n"), 0o444)?;
        }
        Ok(read_file(&self.path("etc/machine-id"))?.trim().to_owned())
    }

    /// An empty file means that the id is not set yet (machine-id(5)).
    pub fn forget_machine_id(&self) -> Result<()> {
        for path in ["etc/machine-id", "var/lib/dbus/machine-id"].map(|path| self.path(path)) {
            if fs::symlink_metadata(&path).is_ok_and(|found| found.is_file()) {
                write_file(&path, "", 0o444)?;
            }
        }
        Ok(())
    }

    fn set_mtu(&self, mtu: u32) -> Result<u32> {
        if !self.is_init {
            return Ok(mtu);
        }
        net::set_mtu(net::INTERFACE, mtu)?;
        net::get_mtu(net::INTERFACE)
    }

    /// Returns the number of authorized keys, the user's own included.
    fn merge_ssh_keys(&self, keys: &[String]) -> Result<usize> {
        let directory = self.path("root/.ssh");
        if !is_private_directory(&directory) {
            fs::create_dir_all(self.path("root"))?;
            match fs::DirBuilder::new().mode(0o700).create(&directory) {
                Err(error) if error.raw_os_error() != Some(libc::EEXIST) => return Err(error),
                _ => fs::set_permissions(&directory, fs::Permissions::from_mode(0o700))?,
            }
        }
        let path = directory.join("authorized_keys");
        let text = read_file(&path)?;
        let mut known: Vec<&str> = lines_outside(&text).into_iter().map(str::trim).collect();
        let mut new_keys: Vec<String> = Vec::new();
        for key in keys.iter().map(|key| key.trim()).filter(|key| !key.is_empty() && !key.contains('\n')) {
            if !known.contains(&key) {
                known.push(key);
                new_keys.push(key.to_owned());
            }
        }
        write_file(&path, &render(&text, &new_keys), 0o600)?;
        let counts = |line: &&str| !line.trim().is_empty() && !line.starts_with('#');
        Ok(read_file(&path)?.lines().filter(counts).count())
    }

    /// New keys are generated when sshd first starts; a clone must not keep those of its template.
    pub fn remove_host_keys(&self) -> Result<usize> {
        for key in self.host_keys() {
            fs::remove_file(key)?;
        }
        Ok(self.host_keys().len())
    }

    fn host_keys(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.path("etc/ssh")) else { return Vec::new() };
        let names = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("ssh_host_"));
        names.map(|entry| entry.path()).collect()
    }
}

fn is_private_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir() && found.permissions().mode() & 0o7777 == 0o700)
}

fn check_hostname(name: &str) -> std::result::Result<(), Failure> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    if (1..=63).contains(&name.len()) && name.bytes().all(allowed) {
        return Ok(());
    }
    Err(Failure::invalid("hostname: must be 1 to 63 letters, digits, dots and dashes"))
}

fn check_machine_id(id: &str) -> std::result::Result<(), Failure> {
    if id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(());
    }
    Err(Failure::invalid("machine_id: must be 32 hex digits"))
}

fn check_hosts(entries: &[HostEntry]) -> std::result::Result<(), Failure> {
    let good = |name: &String| !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || c == '#');
    if entries.iter().all(|entry| !entry.names.is_empty() && entry.names.iter().all(good)) {
        return Ok(());
    }
    Err(Failure::invalid("hosts: each entry needs names without spaces"))
}

fn apply_error(what: &'static str) -> impl Fn(Error) -> Failure {
    move |error| Failure::new(http::StatusCode::INTERNAL_SERVER_ERROR, "identity_failed", format!("{what}: {error}"))
}

/// Defaults set during boot, before any host has connected, so that names resolve from the first command on.
pub fn set_defaults(root: &Path, nameserver: IpAddr) -> Result<()> {
    let identity = Identity { root: root.into(), is_init: true };
    fs::create_dir_all(root.join("etc"))?;
    let hostname = read_file(&root.join("etc/hostname"))?;
    let hostname = if hostname.trim().is_empty() { "sandbox" } else { hostname.trim() };
    identity.set_hostname(hostname)?;
    identity.write_hosts((hostname, None), &[])?;
    identity.write_resolv_conf(nameserver)?;
    Ok(())
}

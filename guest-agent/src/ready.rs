//! GET /ready: reports that the machine is up, and its basic facts.

use serde::Serialize;

use crate::agent::Agent;

/// What this agent can do, counted up with each ability that a host must know of before it uses it. A host reads it from
/// the saved machine's manifest, because it decides some of it before the machine runs.
///
/// 2: `address` in the identity. Agents before that report no number and count as 1.
/// 3: builds of templates: `/folders`, `/freeze`, `/thaw`, `/pack`, and `build` in the start of a process.
/// 4: disks: `/mounts`.
/// 5: disks at any path; mounts report what is unsaved, conflicts, and whether conditions are honoured.
pub const PROTOCOL: u32 = 5;

#[derive(Serialize)]
pub struct AgentInfo {
    version: &'static str,
    protocol: u32,
}

pub const AGENT_INFO: AgentInfo = AgentInfo { version: env!("CARGO_PKG_VERSION"), protocol: PROTOCOL };

#[derive(Serialize)]
pub struct Ready {
    agent_version: &'static str,
    protocol: u32,
    boot_id: String,
    uptime_ms: u64,
    /// `tsc` or `kvm-clock` on a healthy machine; the host does not save a base with any other clock source.
    clocksource: String,
    process_trees: &'static str,
}

pub fn get_ready(agent: &Agent) -> Ready {
    Ready {
        agent_version: AGENT_INFO.version,
        protocol: AGENT_INFO.protocol,
        boot_id: read_line("/proc/sys/kernel/random/boot_id"),
        uptime_ms: uptime_ms(),
        clocksource: read_line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        process_trees: if agent.trees.root().is_some() { "cgroup" } else { "session" },
    }
}

pub fn uptime_ms() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to a local.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut now) };
    u64::try_from(now.tv_sec * 1000 + now.tv_nsec / 1_000_000).unwrap_or_default()
}

fn read_line(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

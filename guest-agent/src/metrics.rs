//! GET /metrics: measurements from the guest's kernel. They are counters, not rates: the host computes the time series.

use std::fs;
use std::io::Error;

use serde::Serialize;

use crate::ready::uptime_ms;
use crate::reply::Failure;
use crate::sys;

#[derive(Serialize, Debug)]
pub struct Metrics {
    pub uptime_ms: u64,
    pub memory: Memory,
    pub cpu: Cpu,
    /// One per core, in the order of /proc/stat.
    pub cores: Vec<Cpu>,
    pub root: Filesystem,
    pub processes: usize,
    pub load: [f64; 3],
}

#[derive(Serialize, Debug)]
pub struct Memory {
    pub total_bytes: u64,
    pub available_bytes: u64,
}

/// Since boot. `busy_ms` is everything except idle and I/O wait; `steal_ms` is time taken by the host and is part of
/// busy.
#[derive(Serialize, Debug, PartialEq)]
pub struct Cpu {
    pub busy_ms: u64,
    pub idle_ms: u64,
    pub iowait_ms: u64,
    pub steal_ms: u64,
}

#[derive(Serialize, Debug)]
pub struct Filesystem {
    pub total_bytes: u64,
    pub used_bytes: u64,
    pub available_bytes: u64,
}

pub fn measure() -> Result<Metrics, Failure> {
    let failed = |error: Error| Failure::internal("metrics", &error);
    let read = |path: &str| fs::read_to_string(path).map_err(failed);
    let (cpu, cores) = parse_stat(&read("/proc/stat")?);
    Ok(Metrics {
        uptime_ms: uptime_ms(),
        memory: parse_memory(&read("/proc/meminfo")?),
        cpu,
        cores,
        root: root_filesystem().map_err(failed)?,
        processes: count_processes(),
        load: parse_load(&read("/proc/loadavg")?),
    })
}

fn parse_memory(text: &str) -> Memory {
    let bytes_of = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib: Option<u64> = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        kib.unwrap_or_default() * 1024
    };
    Memory { total_bytes: bytes_of("MemTotal"), available_bytes: bytes_of("MemAvailable") }
}

fn parse_stat(text: &str) -> (Cpu, Vec<Cpu>) {
    let mut all = text.lines().filter_map(parse_cpu);
    let total = all.next().unwrap_or(Cpu { busy_ms: 0, idle_ms: 0, iowait_ms: 0, steal_ms: 0 });
    (total, all.collect())
}

/// `cpuN user nice system idle iowait irq softirq steal guest guest_nice`, in hundredths of a second. The guest
/// fields are already inside user and nice.
fn parse_cpu(line: &str) -> Option<Cpu> {
    const MS_PER_TICK: u64 = 10;
    let mut fields = line.strip_prefix("cpu")?.split(' ').skip(1).filter(|field| !field.is_empty());
    let mut next = || fields.next().and_then(|field| field.parse::<u64>().ok()).unwrap_or_default() * MS_PER_TICK;
    let (user, nice, system, idle_ms, iowait_ms) = (next(), next(), next(), next(), next());
    let (irq, softirq, steal_ms) = (next(), next(), next());
    Some(Cpu { busy_ms: user + nice + system + irq + softirq + steal_ms, idle_ms, iowait_ms, steal_ms })
}

fn parse_load(text: &str) -> [f64; 3] {
    let mut fields = text.split_whitespace().map(|field| field.parse().unwrap_or_default());
    [(); 3].map(|()| fields.next().unwrap_or_default())
}

fn root_filesystem() -> Result<Filesystem, Error> {
    // SAFETY: all zeros is valid, and the kernel fills it.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    sys::check(unsafe { libc::statvfs(c"/".as_ptr(), &mut stat) })?;
    Ok(Filesystem {
        total_bytes: stat.f_blocks * stat.f_frsize,
        used_bytes: stat.f_blocks.saturating_sub(stat.f_bfree) * stat.f_frsize,
        available_bytes: stat.f_bavail * stat.f_frsize,
    })
}

fn count_processes() -> usize {
    let Ok(entries) = fs::read_dir("/proc") else { return 0 };
    let is_pid = |name: &std::ffi::OsStr| name.to_str().is_some_and(|name| name.parse::<u32>().is_ok());
    entries.flatten().filter(|entry| is_pid(&entry.file_name())).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_and_each_core_are_distinguished() {
        let text = "cpu  10 1 5 100 7 2 3 4 0 0\ncpu0 10 1 5 100 7 2 3 4 0 0\nintr 5\n";

        let (total, cores) = parse_stat(text);

        assert_eq!(total, Cpu { busy_ms: 250, idle_ms: 1000, iowait_ms: 70, steal_ms: 40 });
        assert_eq!(cores, [total]);
    }

    #[test]
    fn the_machine_running_the_tests_can_be_measured() {
        let metrics = measure();

        let plausible = metrics.is_ok_and(|seen| {
            seen.memory.total_bytes > seen.memory.available_bytes
                && seen.root.total_bytes >= seen.root.used_bytes
                && seen.processes > 0
                && !seen.cores.is_empty()
        });
        assert!(plausible);
    }
}

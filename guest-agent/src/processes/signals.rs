//! Signal names and numbers.

/// Linux signal names on x86-64 and arm64, starting with 1.
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
    "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO",
    "PWR", "SYS",
];
/// As numbered by C libraries; the kernel's first real-time signal is two lower.
const RTMIN: i32 = 34;

pub fn signal_name(number: i32) -> String {
    let name = usize::try_from(number - 1).ok().and_then(|index| NAMES.get(index));
    match name {
        Some(name) => format!("SIG{name}"),
        None if number >= RTMIN => format!("SIGRTMIN+{}", number - RTMIN),
        None => format!("SIG{number}"),
    }
}

/// Returns the number of a signal that callers may send.
pub fn sendable_signal(name: &str) -> Option<i32> {
    Some(match name {
        "SIGHUP" => libc::SIGHUP,
        "SIGINT" => libc::SIGINT,
        "SIGQUIT" => libc::SIGQUIT,
        "SIGKILL" => libc::SIGKILL,
        "SIGTERM" => libc::SIGTERM,
        "SIGUSR1" => libc::SIGUSR1,
        "SIGUSR2" => libc::SIGUSR2,
        "SIGWINCH" => libc::SIGWINCH,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_agree() {
        for name in ["SIGHUP", "SIGINT", "SIGQUIT", "SIGKILL", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGWINCH"] {
            assert_eq!(sendable_signal(name).map(signal_name).as_deref(), Some(name));
        }
        assert_eq!(signal_name(libc::SIGSEGV), "SIGSEGV");
        assert_eq!(signal_name(libc::SIGSYS), "SIGSYS");
        assert_eq!(signal_name(34), "SIGRTMIN+0");
        assert_eq!(signal_name(64), "SIGRTMIN+30");
        assert_eq!(sendable_signal("SIGSTOP"), None);
    }
}

//! The system calls of QEMU, as an allow-list. All others fail with ENOSYS, which C libraries answer by falling back to
//! an older call. QEMU's own filter denies some of the allowed ones as well, and ends QEMU then.
//!
//! The list is what QEMU was seen to call at boot, under load and when it is paused, resumed and forked, and what the C
//! library may use instead. `execve` is in it because QEMU itself is executed after the filter is installed; QEMU's own
//! filter (`-sandbox on,spawn=deny`) removes it again before the guest runs.

use std::io::Result;

use crate::bpf::{self, ALLOW, DENY, FIRST_ARGUMENT, NAMESPACES, PROLOGUE, give, load, skip_if};

pub fn install() -> Result<()> {
    bpf::install(assemble())
}

/// A thread of the same process in the same namespaces: what pthread_create asks for. `clone3` is not allowed, because
/// its flags are in memory, where a filter cannot see them.
const THREAD: u32 = libc::CLONE_THREAD as u32;

fn assemble() -> Vec<libc::sock_filter> {
    let mut program = PROLOGUE.to_vec();
    program.extend([
        // clone: only for threads.
        skip_if(libc::BPF_JEQ, libc::SYS_clone as u32, 0, 5),
        load(FIRST_ARGUMENT),
        skip_if(libc::BPF_JSET, NAMESPACES, 2, 0),
        skip_if(libc::BPF_JSET, THREAD, 0, 1),
        give(ALLOW),
        give(DENY),
        // socket: only for the monitor and the guest's channels.
        skip_if(libc::BPF_JEQ, libc::SYS_socket as u32, 0, 4),
        load(FIRST_ARGUMENT),
        skip_if(libc::BPF_JEQ, libc::AF_UNIX as u32, 0, 1),
        give(ALLOW),
        give(DENY),
    ]);
    for number in ALLOWED.iter().chain(ALLOWED_HERE) {
        program.push(skip_if(libc::BPF_JEQ, *number as u32, 0, 1));
        program.push(give(ALLOW));
    }
    program.push(give(DENY));
    program
}

#[rustfmt::skip]
const ALLOWED: &[libc::c_long] = &[
    // Files and folders.
    libc::SYS_openat, libc::SYS_close, libc::SYS_close_range, libc::SYS_read, libc::SYS_write, libc::SYS_readv,
    libc::SYS_writev, libc::SYS_pread64, libc::SYS_pwrite64, libc::SYS_preadv, libc::SYS_pwritev, libc::SYS_preadv2,
    libc::SYS_pwritev2, libc::SYS_lseek, libc::SYS_fstat, libc::SYS_newfstatat, libc::SYS_statx, libc::SYS_statfs,
    libc::SYS_fstatfs, libc::SYS_faccessat, libc::SYS_faccessat2, libc::SYS_readlinkat, libc::SYS_getdents64,
    libc::SYS_fcntl, libc::SYS_flock, libc::SYS_ftruncate, libc::SYS_fallocate, libc::SYS_fsync, libc::SYS_fdatasync,
    libc::SYS_sync_file_range, libc::SYS_fadvise64, libc::SYS_copy_file_range, libc::SYS_unlinkat, libc::SYS_getcwd,
    libc::SYS_umask, libc::SYS_dup, libc::SYS_dup3, libc::SYS_pipe2, libc::SYS_ioctl,
    // Memory.
    libc::SYS_mmap, libc::SYS_munmap, libc::SYS_mprotect, libc::SYS_mremap, libc::SYS_madvise, libc::SYS_msync,
    libc::SYS_brk, libc::SYS_membarrier,
    // Threads, signals and time.
    libc::SYS_futex, libc::SYS_futex_waitv, libc::SYS_set_robust_list, libc::SYS_get_robust_list, libc::SYS_rseq,
    libc::SYS_set_tid_address, libc::SYS_gettid, libc::SYS_tgkill, libc::SYS_sched_yield, libc::SYS_sched_getaffinity,
    libc::SYS_sched_getparam, libc::SYS_sched_getscheduler, libc::SYS_exit, libc::SYS_exit_group, libc::SYS_execve,
    libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn, libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_sigpending, libc::SYS_sigaltstack, libc::SYS_signalfd4, libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep, libc::SYS_clock_gettime, libc::SYS_clock_getres, libc::SYS_gettimeofday,
    libc::SYS_timerfd_create, libc::SYS_timerfd_settime, libc::SYS_timerfd_gettime, libc::SYS_timer_create,
    libc::SYS_timer_settime, libc::SYS_timer_gettime, libc::SYS_timer_delete, libc::SYS_restart_syscall,
    // Events and sockets.
    libc::SYS_ppoll, libc::SYS_pselect6, libc::SYS_epoll_create1, libc::SYS_epoll_ctl, libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2, libc::SYS_eventfd2, libc::SYS_bind, libc::SYS_listen, libc::SYS_accept, libc::SYS_accept4,
    libc::SYS_getsockname, libc::SYS_getpeername, libc::SYS_setsockopt, libc::SYS_getsockopt, libc::SYS_sendmsg,
    libc::SYS_recvmsg, libc::SYS_sendto, libc::SYS_recvfrom, libc::SYS_shutdown,
    // The process itself.
    libc::SYS_getpid, libc::SYS_getppid, libc::SYS_getuid, libc::SYS_geteuid, libc::SYS_getgid, libc::SYS_getegid,
    libc::SYS_prlimit64, libc::SYS_getrusage, libc::SYS_sysinfo, libc::SYS_uname, libc::SYS_getrandom,
    // QEMU switches its own filter on with these.
    libc::SYS_prctl, libc::SYS_seccomp,
];

/// Older forms of calls in the list above.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const ALLOWED_HERE: &[libc::c_long] = &[
    libc::SYS_open, libc::SYS_stat, libc::SYS_lstat, libc::SYS_access, libc::SYS_readlink, libc::SYS_unlink,
    libc::SYS_dup2, libc::SYS_pipe, libc::SYS_poll, libc::SYS_select, libc::SYS_epoll_wait, libc::SYS_eventfd,
    libc::SYS_getrlimit, libc::SYS_time, libc::SYS_arch_prctl,
];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_HERE: &[libc::c_long] = &[];

#[cfg(test)]
mod tests {
    use super::*;

    use crate::bpf::{ARCHITECTURE, X32};

    fn decide(number: libc::c_long, first_argument: u64) -> u32 {
        decide_for(ARCHITECTURE, number as u32, first_argument)
    }

    fn decide_for(arch: u32, number: u32, first_argument: u64) -> u32 {
        bpf::decide(&assemble(), arch, number, [first_argument, 0, 0])
    }

    #[test]
    fn what_qemu_needs_is_allowed() {
        for number in [libc::SYS_read, libc::SYS_mmap, libc::SYS_ioctl, libc::SYS_execve, libc::SYS_seccomp] {
            assert_eq!(decide(number, 0), ALLOW, "{number}");
        }
    }

    #[test]
    fn what_would_reach_other_processes_or_the_kernels_rare_parts_is_denied() {
        for number in [
            libc::SYS_ptrace,
            libc::SYS_process_vm_readv,
            libc::SYS_kill,
            libc::SYS_pidfd_open,
            libc::SYS_mount,
            libc::SYS_unshare,
            libc::SYS_setns,
            libc::SYS_pivot_root,
            libc::SYS_chroot,
            libc::SYS_bpf,
            libc::SYS_perf_event_open,
            libc::SYS_io_uring_setup,
            libc::SYS_userfaultfd,
            libc::SYS_keyctl,
            libc::SYS_add_key,
            libc::SYS_init_module,
            libc::SYS_kexec_load,
            libc::SYS_clone3,
            libc::SYS_connect,
            libc::SYS_socketpair,
            libc::SYS_setuid,
            libc::SYS_mknodat,
            libc::SYS_linkat,
            libc::SYS_symlinkat,
            libc::SYS_renameat2,
            libc::SYS_open_by_handle_at,
            libc::SYS_memfd_create,
            libc::SYS_shmget,
        ] {
            assert_eq!(decide(number, 0), DENY, "{number}");
        }
    }

    #[test]
    fn clone_makes_threads_and_nothing_else() {
        assert_eq!(decide(libc::SYS_clone, libc::CLONE_THREAD as u64), ALLOW);
        assert_eq!(decide(libc::SYS_clone, libc::SIGCHLD as u64), DENY);
        assert_eq!(decide(libc::SYS_clone, (libc::CLONE_THREAD | libc::CLONE_NEWUSER) as u64), DENY);
    }

    #[test]
    fn sockets_are_local() {
        assert_eq!(decide(libc::SYS_socket, libc::AF_UNIX as u64), ALLOW);
        for family in [libc::AF_INET, libc::AF_INET6, libc::AF_PACKET, libc::AF_NETLINK, libc::AF_VSOCK] {
            assert_eq!(decide(libc::SYS_socket, family as u64), DENY, "{family}");
        }
    }

    #[test]
    fn other_abis_are_denied() {
        assert_eq!(decide_for(0x4000_0003, libc::SYS_read as u32, 0), DENY);
        assert_eq!(decide_for(ARCHITECTURE, libc::SYS_read as u32 | X32, 0), DENY);
    }
}

//! The system calls that no service needs, as a deny-list: those that reach other processes, make namespaces or mounts, or
//! enter rarely used parts of the kernel. Without capabilities most of them fail anyway. Services are Node and PostgreSQL,
//! which call too many others for a list of what is allowed.

use std::io::Result;

use crate::bpf::{self, ALLOW, DENY, FIRST_ARGUMENT, NAMESPACES, PROLOGUE, THIRD_ARGUMENT, give, load, skip_if};

pub fn install(ip_only: bool) -> Result<()> {
    bpf::install(assemble(ip_only))
}

/// What services connect with.
const FAMILIES: [libc::c_int; 3] = [libc::AF_INET, libc::AF_INET6, libc::AF_UNIX];
const IP_FAMILIES: usize = 2;

fn assemble(ip_only: bool) -> Vec<libc::sock_filter> {
    let mut sockets = vec![load(FIRST_ARGUMENT)];
    for family in if ip_only { &FAMILIES[..IP_FAMILIES] } else { &FAMILIES } {
        sockets.extend([skip_if(libc::BPF_JEQ, *family as u32, 0, 1), give(ALLOW)]);
    }
    if !ip_only {
        // The protocol that lists the addresses of the machine, and no other: not those of the firewall or of audits.
        sockets.extend([
            skip_if(libc::BPF_JEQ, libc::AF_NETLINK as u32, 0, 3),
            load(THIRD_ARGUMENT),
            skip_if(libc::BPF_JEQ, libc::NETLINK_ROUTE as u32, 0, 1),
            give(ALLOW),
        ]);
    }
    sockets.push(give(DENY));
    let mut program = PROLOGUE.to_vec();
    // clone: for threads and processes in the same namespaces. The flags of clone3 are in memory, where a filter cannot
    // see them; the C library falls back to clone.
    program.extend([
        skip_if(libc::BPF_JEQ, libc::SYS_clone as u32, 0, 4),
        load(FIRST_ARGUMENT),
        skip_if(libc::BPF_JSET, NAMESPACES, 0, 1),
        give(DENY),
        give(ALLOW),
        skip_if(libc::BPF_JEQ, libc::SYS_socket as u32, 0, sockets.len() as u8),
    ]);
    program.extend(sockets);
    for number in DENIED.iter().chain(DENIED_HERE) {
        program.push(skip_if(libc::BPF_JEQ, *number as u32, 0, 1));
        program.push(give(DENY));
    }
    program.push(give(ALLOW));
    program
}

#[rustfmt::skip]
const DENIED: &[libc::c_long] = &[
    // Namespaces, mounts and the root.
    libc::SYS_clone3, libc::SYS_unshare, libc::SYS_setns, libc::SYS_mount, libc::SYS_umount2, libc::SYS_pivot_root,
    libc::SYS_chroot, libc::SYS_open_tree, libc::SYS_move_mount, libc::SYS_fsopen, libc::SYS_fsconfig,
    libc::SYS_fsmount, libc::SYS_fspick, libc::SYS_mount_setattr, libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at, libc::SYS_quotactl, libc::SYS_quotactl_fd, libc::SYS_mknodat,
    // Other processes.
    libc::SYS_ptrace, libc::SYS_process_vm_readv, libc::SYS_process_vm_writev, libc::SYS_process_madvise,
    libc::SYS_kcmp, libc::SYS_pidfd_getfd, libc::SYS_move_pages, libc::SYS_migrate_pages,
    // Keyrings.
    libc::SYS_keyctl, libc::SYS_add_key, libc::SYS_request_key,
    // The kernel and rarely used parts of it.
    libc::SYS_bpf, libc::SYS_perf_event_open, libc::SYS_userfaultfd, libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter, libc::SYS_io_uring_register, libc::SYS_init_module, libc::SYS_finit_module,
    libc::SYS_delete_module, libc::SYS_kexec_load, libc::SYS_reboot, libc::SYS_swapon, libc::SYS_swapoff,
    libc::SYS_syslog, libc::SYS_acct, libc::SYS_fanotify_init, libc::SYS_lookup_dcookie, libc::SYS_vhangup,
    libc::SYS_personality, libc::SYS_settimeofday, libc::SYS_clock_settime, libc::SYS_clock_adjtime,
    libc::SYS_adjtimex, libc::SYS_sethostname, libc::SYS_setdomainname, libc::SYS_memfd_secret,
];

#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const DENIED_HERE: &[libc::c_long] = &[
    libc::SYS_kexec_file_load, libc::SYS_mknod, libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_modify_ldt, libc::SYS_uselib,
    libc::SYS_ustat, libc::SYS_sysfs, libc::SYS__sysctl,
];
#[cfg(not(target_arch = "x86_64"))]
const DENIED_HERE: &[libc::c_long] = &[];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::{ARCHITECTURE, X32};

    fn decide(number: libc::c_long, first_argument: u64) -> u32 {
        bpf::decide(&assemble(false), ARCHITECTURE, number as u32, [first_argument, 0, 0])
    }

    #[test]
    fn what_node_and_postgresql_need_is_allowed() {
        for number in [libc::SYS_read, libc::SYS_execve, libc::SYS_kill, libc::SYS_shmget, libc::SYS_memfd_create] {
            assert_eq!(decide(number, 0), ALLOW, "{number}");
        }
        assert_eq!(decide(libc::SYS_clone, libc::SIGCHLD as u64), ALLOW);
        assert_eq!(decide(libc::SYS_clone, libc::CLONE_THREAD as u64), ALLOW);
        for family in FAMILIES {
            assert_eq!(decide(libc::SYS_socket, family as u64), ALLOW, "{family}");
        }
    }

    #[test]
    fn of_netlink_only_the_protocol_for_addresses_is_allowed() {
        let decide = |protocol: libc::c_int| {
            let arguments = [libc::AF_NETLINK as u64, libc::SOCK_RAW as u64, protocol as u64];
            bpf::decide(&assemble(false), ARCHITECTURE, libc::SYS_socket as u32, arguments)
        };
        assert_eq!(decide(libc::NETLINK_ROUTE), ALLOW);
        for protocol in [libc::NETLINK_NETFILTER, libc::NETLINK_SOCK_DIAG, libc::NETLINK_AUDIT, libc::NETLINK_XFRM] {
            assert_eq!(decide(protocol), DENY, "{protocol}");
        }
    }

    #[test]
    fn namespaces_other_processes_and_rare_parts_of_the_kernel_are_denied() {
        for number in [libc::SYS_unshare, libc::SYS_ptrace, libc::SYS_mount, libc::SYS_bpf, libc::SYS_keyctl] {
            assert_eq!(decide(number, 0), DENY, "{number}");
        }
        assert_eq!(decide(libc::SYS_clone3, 0), DENY);
        assert_eq!(decide(libc::SYS_clone, (libc::SIGCHLD | libc::CLONE_NEWUSER) as u64), DENY);
        for family in [libc::AF_PACKET, libc::AF_VSOCK, libc::AF_ALG, libc::AF_BLUETOOTH] {
            assert_eq!(decide(libc::SYS_socket, family as u64), DENY, "{family}");
        }
    }

    #[test]
    fn a_service_with_ip_only_has_no_other_sockets() {
        let program = assemble(true);
        let decide = |number: libc::c_long, family: libc::c_int| {
            bpf::decide(&program, ARCHITECTURE, number as u32, [family as u64, 0, 0])
        };
        for family in [libc::AF_INET, libc::AF_INET6] {
            assert_eq!(decide(libc::SYS_socket, family), ALLOW, "{family}");
        }
        for family in [libc::AF_UNIX, libc::AF_NETLINK, libc::AF_PACKET] {
            assert_eq!(decide(libc::SYS_socket, family), DENY, "{family}");
        }
        assert_eq!(decide(libc::SYS_unshare, 0), DENY);
        assert_eq!(decide(libc::SYS_read, 0), ALLOW);
    }

    #[test]
    fn other_abis_are_denied() {
        assert_eq!(bpf::decide(&assemble(false), 0x4000_0003, libc::SYS_read as u32, [0; 3]), DENY);
        assert_eq!(decide(libc::SYS_read | libc::c_long::from(X32), 0), DENY);
    }
}

//! Resource limits and the identity of the program.

use std::io::Error;

use crate::options::{Options, Resource};
use crate::sys::{self, Failure, Step, check, check_long};

const KEYCTL_JOIN_SESSION_KEYRING: libc::c_long = 1;

pub fn limit(options: &Options) -> Result<(), Failure> {
    // 0 would still start the program of a core_pattern that begins with `|`, as root and outside; 1 does not.
    set_limit(libc::RLIMIT_CORE, 1).step("switch core dumps off")?;
    for (resource, value) in &options.limits {
        let (kind, name) = match resource {
            Resource::FileBytes => (libc::RLIMIT_FSIZE, "limit the size of files"),
            Resource::OpenFiles => (libc::RLIMIT_NOFILE, "limit open files"),
            Resource::Processes => (libc::RLIMIT_NPROC, "limit processes"),
        };
        set_limit(kind, *value).step(name)?;
    }
    Ok(())
}

fn set_limit(kind: libc::__rlimit_resource_t, value: u64) -> std::io::Result<()> {
    let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
    // SAFETY: a pointer to a local value.
    check(unsafe { libc::setrlimit(kind, &limit) })?;
    Ok(())
}

/// From here on this process has the rights of a user that owns nothing, and cannot gain others.
pub fn drop(options: &Options) -> Result<(), Failure> {
    let Options { uid, gid, groups, .. } = options;
    // SAFETY: no pointers, except to `groups` with its length.
    unsafe {
        // Keys of the caller's session must not be readable. Kernels without keyrings have no keys either.
        libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, 0);
        drop_bounding_set().step("drop capabilities")?;
        check(libc::setgroups(groups.len(), groups.as_ptr())).step("set the groups")?;
        check(libc::setresgid(*gid, *gid, *gid)).step("set the group id")?;
        check(libc::setresuid(*uid, *uid, *uid)).step("set the user id")?;
        check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)).step("rule out new privileges")?;
        if options.dies_with_parent {
            // After the change of the user id, which clears it.
            check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0)).step("follow the caller's end")?;
            // A caller that ended before that sends no signal.
            if sys::has_hung_up(options.report).step("look for the caller")? {
                return Err(Failure::new("find the caller", Error::from_raw_os_error(libc::ESRCH)));
            }
        }
        libc::umask(0o077);
    }
    Ok(())
}

/// The change of the user id empties the effective and permitted sets, but only what is not in this one can never come
/// back.
fn drop_bounding_set() -> std::io::Result<()> {
    for capability in 0.. {
        // SAFETY: no pointers.
        let known = unsafe { libc::prctl(libc::PR_CAPBSET_READ, capability, 0, 0, 0) };
        if known < 0 {
            break; // The kernel has no more.
        }
        check_long(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) }.into())?;
    }
    Ok(())
}

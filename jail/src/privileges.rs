//! Resource limits and the identity of the program.

use std::io::Error;

use crate::sys::{self, Failure, Step, check, check_long};

const KEYCTL_JOIN_SESSION_KEYRING: libc::c_long = 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resource {
    FileBytes,
    OpenFiles,
    Processes,
}

impl Resource {
    pub fn parse(name: &str) -> Result<Resource, String> {
        match name {
            "fsize" => Ok(Resource::FileBytes),
            "nofile" => Ok(Resource::OpenFiles),
            "nproc" => Ok(Resource::Processes),
            _ => Err(format!("unknown limit {name}")),
        }
    }
}

pub struct Identity<'a> {
    pub uid: libc::uid_t,
    pub gid: libc::gid_t,
    /// Supplementary groups.
    pub groups: &'a [libc::gid_t],
}

pub fn limit(limits: &[(Resource, u64)]) -> Result<(), Failure> {
    // 0 would still start the program of a core_pattern that begins with `|`, as root and outside; 1 does not.
    set_limit(libc::RLIMIT_CORE, 1).step("switch core dumps off")?;
    for (resource, value) in limits {
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
pub fn drop(identity: &Identity) -> Result<(), Failure> {
    let Identity { uid, gid, groups } = *identity;
    // SAFETY: no pointers, except to `groups` with its length.
    unsafe {
        // Keys of the caller's session must not be readable. Kernels without keyrings have no keys either.
        libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, 0);
        drop_bounding_set().step("drop capabilities")?;
        check(libc::setgroups(groups.len(), groups.as_ptr())).step("set the groups")?;
        check(libc::setresgid(gid, gid, gid)).step("set the group id")?;
        check(libc::setresuid(uid, uid, uid)).step("set the user id")?;
        check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)).step("rule out new privileges")?;
        // Until a program is executed, no other process of this user may look into this one.
        check(libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0)).step("hide the memory")?;
        libc::umask(0o077);
    }
    Ok(())
}

/// Sends `signal` to this process when its parent ends. To be called after the change of the user id, which clears it.
/// `alive` is a descriptor whose other end only the parent has: a parent that ended before sends no signal.
pub fn follow_parent(signal: libc::c_int, alive: libc::c_int) -> Result<(), Failure> {
    // SAFETY: no pointers.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal, 0, 0, 0) }).step("follow the caller's end")?;
    if sys::has_hung_up(alive).step("look for the caller")? {
        return Err(Failure::new("find the caller", Error::from_raw_os_error(libc::ESRCH)));
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

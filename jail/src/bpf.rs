//! What filters of system calls are made of.

use std::io::Result;
use std::mem::offset_of;

use crate::sys::check_long;

/// The calling thread must have ruled out new privileges.
pub fn install(mut program: Vec<libc::sock_filter>) -> Result<()> {
    let filter = libc::sock_fprog { len: program.len() as libc::c_ushort, filter: program.as_mut_ptr() };
    // SAFETY: `filter` points to `program`, and both live until the call returns.
    check_long(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &filter) })?;
    Ok(())
}

pub const NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32;

#[cfg(target_arch = "x86_64")]
pub const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
pub const ARCHITECTURE: u32 = 0xc000_00b7;
/// Numbers from here on are calls of the x32 ABI.
pub const X32: u32 = 0x4000_0000;

pub const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
/// C libraries answer ENOSYS by falling back to an older call.
pub const DENY: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

const NUMBER: u32 = offset_of!(libc::seccomp_data, nr) as u32;
const ARCH: u32 = offset_of!(libc::seccomp_data, arch) as u32;
/// The low half; the high half of these arguments has no meaning.
pub const FIRST_ARGUMENT: u32 = offset_of!(libc::seccomp_data, args) as u32;
pub const THIRD_ARGUMENT: u32 = FIRST_ARGUMENT + 2 * size_of::<u64>() as u32;

/// Denies other ABIs, whose numbers mean other calls. Afterwards the number is loaded.
pub const PROLOGUE: [libc::sock_filter; 6] = [
    load(ARCH),
    skip_if(libc::BPF_JEQ, ARCHITECTURE, 1, 0),
    give(DENY),
    load(NUMBER),
    skip_if(libc::BPF_JGE, X32, 0, 1),
    give(DENY),
];

pub const fn load(offset: u32) -> libc::sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0)
}

pub const fn give(action: u32) -> libc::sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, action, 0, 0)
}

/// Skips so many instructions, depending on the comparison of what was loaded with `value`.
pub const fn skip_if(comparison: u32, value: u32, if_true: u8, if_false: u8) -> libc::sock_filter {
    instruction(libc::BPF_JMP | comparison | libc::BPF_K, value, if_true, if_false)
}

const fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

/// Runs a filter as the kernel does.
#[cfg(test)]
pub fn decide(program: &[libc::sock_filter], arch: u32, number: u32, [first, _, third]: [u64; 3]) -> u32 {
    let (mut at, mut loaded) = (0, 0);
    loop {
        let libc::sock_filter { code, jt, jf, k } = program[at];
        at += 1;
        match code as u32 & 0x07 {
            libc::BPF_RET => return k,
            libc::BPF_LD => {
                loaded = match k {
                    NUMBER => number,
                    ARCH => arch,
                    FIRST_ARGUMENT => first as u32,
                    THIRD_ARGUMENT => third as u32,
                    other => panic!("nothing is at {other}"),
                }
            }
            _ => {
                let is_true = match code as u32 & 0xf0 {
                    libc::BPF_JEQ => loaded == k,
                    libc::BPF_JGE => loaded >= k,
                    _ => loaded & k != 0,
                };
                at += if is_true { jt } else { jf } as usize;
            }
        }
    }
}

//! Lets QEMU before 8.2 map a memory file that it cannot write to.
//!
//! Such a QEMU opens the file for reading and writing even if it maps it privately. All clones of a base map one file, so
//! it must not be writable for any of them. This library is loaded before the C library (`LD_PRELOAD`) and opens that one
//! file for reading only, which is all that a private mapping needs.
//!
//! It is no part of the protection: the file belongs to root, and a QEMU without this library fails to start.

#![no_std]

use core::ffi::{CStr, c_char, c_int, c_uint};

/// `FDS.ram` in host-agent/src/vmm/args.ts.
const MEMORY_FILE: &CStr = c"/proc/self/fd/7";
const O_ACCMODE: c_int = 3;
const O_RDWR: c_int = 2;

unsafe extern "C" {
    fn openat64(folder: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
}

const AT_FDCWD: c_int = -100;

/// The C function takes `mode` only with flags that create a file. On the machines of Warren it is passed in the same
/// register either way.
///
/// # Safety
/// As the function of the C library: `path` is a string that ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { openat64(AT_FDCWD, path, without_writing(path, flags), mode) }
}

/// What `open64` becomes in programs that are compiled with checks of their calls.
///
/// # Safety
/// The same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { open64(path, flags, 0) }
}

/// # Safety
/// `path` is a string that ends with a zero byte.
unsafe fn without_writing(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let is_memory = unsafe { CStr::from_ptr(path) } == MEMORY_FILE;
    if is_memory && flags & O_ACCMODE == O_RDWR { flags & !O_ACCMODE } else { flags }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}

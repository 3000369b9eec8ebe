//! The guest's network device, eth0. Like QEMU, this program copies frames between it and the sandbox's tap.

use std::fs::{File, OpenOptions};
use std::io::{Error, Read, Result, Write};
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::thread;

use crate::sys::check;

/// The descriptor of the sandbox's tap, as the host agent passes it to QEMU.
const TAP_FD: RawFd = 3;
/// host-agent/src/net/names.ts
const MAC: [u8; 6] = [0x02, 0x00, 0x00, 0x00, 0x00, 0x02];
const TUN_SET_IFF: libc::Ioctl = 0x4004_54ca_u32 as libc::Ioctl;
const TUN_SET_OFFLOAD: libc::Ioctl = 0x4004_54d0_u32 as libc::Ioctl;
/// A frame of the largest segment that is passed on whole, with its virtio header.
const FRAME_MAX: usize = 65_536 + 64;
/// TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6
const OFFLOADS: libc::c_ulong = 0x07;

pub fn connect() -> Result<()> {
    let device = create()?;
    // SAFETY: the host agent passes the descriptor for this program to own.
    let tap = unsafe { File::from_raw_fd(TAP_FD) };
    for file in [&device, &tap] {
        // SAFETY: the argument is a number.
        check(unsafe { libc::ioctl(file.as_raw_fd(), TUN_SET_OFFLOAD, OFFLOADS) })?;
    }
    copy(device.try_clone()?, tap.try_clone()?);
    copy(tap, device);
    Ok(())
}

fn create() -> Result<File> {
    let device = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
    let mut request = request_for(b"eth0");
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
    // SAFETY: the ioctls read one ifreq each.
    unsafe {
        check(libc::ioctl(device.as_raw_fd(), TUN_SET_IFF, &request))?;
        let socket = File::from_raw_fd(check(libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0))?);
        let mut address: libc::sockaddr = zeroed();
        address.sa_family = libc::ARPHRD_ETHER;
        for (slot, byte) in address.sa_data.iter_mut().zip(MAC) {
            *slot = byte as libc::c_char;
        }
        request.ifr_ifru.ifru_hwaddr = address;
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFHWADDR, &request))?;
        for name in [b"eth0".as_slice(), b"lo"] {
            let mut up = request_for(name);
            up.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
            check(libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &up))?;
        }
    }
    Ok(device)
}

fn request_for(name: &[u8]) -> libc::ifreq {
    // SAFETY: a plain structure.
    let mut request: libc::ifreq = unsafe { zeroed() };
    for (slot, byte) in request.ifr_name.iter_mut().zip(name) {
        *slot = *byte as libc::c_char;
    }
    request
}

/// A frame that the other side does not take, such as before it is up, is lost, as on a wire.
fn copy(mut from: File, mut to: File) {
    thread::spawn(move || -> Result<()> {
        let mut frame = vec![0; FRAME_MAX];
        loop {
            let length = from.read(&mut frame)?;
            let frame = frame.get(..length).ok_or_else(|| Error::other("a frame is too long"))?;
            let _ = to.write(frame);
        }
    });
}

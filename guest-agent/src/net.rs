//! Configures the guest's network at boot, with ioctls. A machine that belongs to no sandbox yet has INITIAL_ADDRESS;
//! guest_address.rs replaces it.

use std::io::{Error, Result};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::sys::{c_string, check};

pub const INTERFACE: &str = "eth0";
pub const NAMESERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 1, 1));
pub const INITIAL_ADDRESS: Ipv4Addr = Ipv4Addr::new(172, 30, 0, 2);
pub const INITIAL_PREFIX: u8 = 30;
const NETMASK: Ipv4Addr = Ipv4Addr::new(255, 255, 255, 252);
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(172, 30, 0, 1);

pub fn bring_up(mtu: Option<u32>) -> Result<()> {
    set_up("lo")?;
    set_address(libc::SIOCSIFADDR, INITIAL_ADDRESS)?;
    set_address(libc::SIOCSIFNETMASK, NETMASK)?;
    if let Some(mtu) = mtu {
        set_mtu(INTERFACE, mtu)?;
    }
    set_up(INTERFACE)?;
    add_default_route()
}

pub fn set_mtu(interface: &str, mtu: u32) -> Result<()> {
    let mut request = interface_request(interface);
    request.ifr_ifru.ifru_mtu = i32::try_from(mtu).unwrap_or(i32::MAX);
    control(libc::SIOCSIFMTU, &mut request)
}

pub fn get_mtu(interface: &str) -> Result<u32> {
    let mut request = interface_request(interface);
    control(libc::SIOCGIFMTU, &mut request)?;
    // SAFETY: the kernel has filled this member.
    Ok(u32::try_from(unsafe { request.ifr_ifru.ifru_mtu }).unwrap_or_default())
}

pub fn set_up(interface: &str) -> Result<()> {
    let mut request = interface_request(interface);
    control(libc::SIOCGIFFLAGS, &mut request)?;
    // SAFETY: the kernel has filled this member.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    request.ifr_ifru.ifru_flags = flags | (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    control(libc::SIOCSIFFLAGS, &mut request)
}

pub fn interface_index(interface: &str) -> Result<u32> {
    let name = c_string(interface)?;
    // SAFETY: a valid C string.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(Error::last_os_error()),
        index => Ok(index),
    }
}

fn set_address(what: libc::Ioctl, address: Ipv4Addr) -> Result<()> {
    let mut request = interface_request(INTERFACE);
    request.ifr_ifru.ifru_addr = socket_address(address);
    control(what, &mut request)
}

fn add_default_route() -> Result<()> {
    // SAFETY: all zeros is a valid rtentry; no pointer in it is set.
    let mut route: libc::rtentry = unsafe { std::mem::zeroed() };
    route.rt_dst = socket_address(Ipv4Addr::UNSPECIFIED);
    route.rt_genmask = socket_address(Ipv4Addr::UNSPECIFIED);
    route.rt_gateway = socket_address(GATEWAY);
    route.rt_flags = libc::RTF_UP | libc::RTF_GATEWAY;
    match control(libc::SIOCADDRT, &mut route) {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        result => result,
    }
}

fn interface_request(interface: &str) -> libc::ifreq {
    // SAFETY: all zeros is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (slot, byte) in request.ifr_name.iter_mut().zip(interface.bytes().take(libc::IFNAMSIZ - 1)) {
        *slot = byte as libc::c_char;
    }
    request
}

fn socket_address(address: Ipv4Addr) -> libc::sockaddr {
    let inet = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: 0,
        sin_addr: libc::in_addr { s_addr: u32::from(address).to_be() },
        sin_zero: [0; 8],
    };
    // SAFETY: both types are the same 16 bytes.
    unsafe { std::mem::transmute::<libc::sockaddr_in, libc::sockaddr>(inet) }
}

fn control<T>(what: libc::Ioctl, argument: &mut T) -> Result<()> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    // SAFETY: a new socket that this function owns; callers pair each ioctl with its struct.
    unsafe {
        let socket = OwnedFd::from_raw_fd(check(libc::socket(libc::AF_INET, kind, 0))?);
        check(libc::ioctl(socket.as_raw_fd(), what, std::ptr::from_mut(argument)))?;
    }
    Ok(())
}

//! Gives the guest the address of its sandbox, with rtnetlink: images may lack `ip`, and a process costs tens of
//! milliseconds under emulation.
//!
//! The address is a /32, so every destination is reached through the gateway, which is not in a subnet of the guest
//! (`onlink`). Only the address that this agent added before is removed; those that the user added are kept.

use std::io::{Error, Result};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::net;
use crate::sys::check;

const PREFIX: u8 = 32;
const RTNH_F_ONLINK: u32 = 4;
const CREATE_OR_REPLACE: libc::c_int = libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
const HEADER_LEN: usize = 16;
const ATTRIBUTE_HEADER_LEN: usize = 4;

/// `old` is the address that the interface got from this agent, with its prefix. Returns the new address as a program
/// sees it that binds to it.
pub fn replace_address(old: (Ipv4Addr, u8), new: Ipv4Addr) -> Result<Ipv4Addr> {
    net::set_up(net::INTERFACE)?;
    let interface = net::interface_index(net::INTERFACE)?;
    let socket = open_socket()?;
    // The new one first: the default route is never missing, and refers to an address that exists.
    request(&socket, libc::RTM_NEWADDR, CREATE_OR_REPLACE, &address_message(interface, (new, PREFIX)))?;
    request(&socket, libc::RTM_NEWROUTE, CREATE_OR_REPLACE, &default_route_message(interface, new))?;
    match request(&socket, libc::RTM_DELADDR, 0, &address_message(interface, old)) {
        // The user has removed it.
        Err(error) if error.raw_os_error() == Some(libc::EADDRNOTAVAIL) => {}
        result => result?,
    }
    match UdpSocket::bind((new, 0))?.local_addr()?.ip() {
        IpAddr::V4(bound) => Ok(bound),
        IpAddr::V6(bound) => Err(Error::other(format!("bound to {bound}"))),
    }
}

fn open_socket() -> Result<OwnedFd> {
    // SAFETY: a new socket, owned by the result.
    unsafe {
        let fd = check(libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// struct ifaddrmsg: family, prefix length, flags, scope, index.
fn address_message(interface: u32, (address, prefix): (Ipv4Addr, u8)) -> Vec<u8> {
    let mut message = vec![libc::AF_INET as u8, prefix, 0, libc::RT_SCOPE_UNIVERSE];
    message.extend(interface.to_ne_bytes());
    add_attribute(&mut message, libc::IFA_LOCAL, address.octets());
    add_attribute(&mut message, libc::IFA_ADDRESS, address.octets());
    message
}

/// struct rtmsg: family, lengths of target and source, tos, table, protocol, scope, type, flags.
fn default_route_message(interface: u32, source: Ipv4Addr) -> Vec<u8> {
    let (table, protocol) = (libc::RT_TABLE_MAIN, libc::RTPROT_BOOT);
    let mut message = vec![libc::AF_INET as u8, 0, 0, 0, table, protocol, libc::RT_SCOPE_UNIVERSE, libc::RTN_UNICAST];
    message.extend(RTNH_F_ONLINK.to_ne_bytes());
    add_attribute(&mut message, libc::RTA_GATEWAY, net::GATEWAY.octets());
    add_attribute(&mut message, libc::RTA_OIF, interface.to_ne_bytes());
    add_attribute(&mut message, libc::RTA_PREFSRC, source.octets());
    message
}

/// All values have four bytes, so none needs padding.
fn add_attribute(message: &mut Vec<u8>, kind: libc::c_ushort, value: [u8; 4]) {
    let length = (ATTRIBUTE_HEADER_LEN + value.len()) as u16;
    message.extend(length.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(value);
}

/// Sends one request and waits for its acknowledgement.
fn request(socket: &OwnedFd, kind: u16, flags: libc::c_int, body: &[u8]) -> Result<()> {
    let mut message = Vec::with_capacity(HEADER_LEN + body.len());
    // struct nlmsghdr: length, type, flags, sequence number, port.
    message.extend(((HEADER_LEN + body.len()) as u32).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(((libc::NLM_F_REQUEST | libc::NLM_F_ACK | flags) as u16).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    let mut response = [0u8; 1024];
    // SAFETY: both buffers have the given lengths.
    let received = unsafe {
        let sent = libc::send(socket.as_raw_fd(), message.as_ptr().cast(), message.len(), 0);
        if sent < 0 {
            return Err(Error::last_os_error());
        }
        libc::recv(socket.as_raw_fd(), response.as_mut_ptr().cast(), response.len(), 0)
    };
    if received < 0 {
        return Err(Error::last_os_error());
    }
    // struct nlmsgerr starts with the negative error number; 0 is an acknowledgement.
    let number = response.get(HEADER_LEN..HEADER_LEN + 4).and_then(|bytes| bytes.try_into().ok());
    match number.map(i32::from_ne_bytes) {
        Some(0) => Ok(()),
        Some(negative) => Err(Error::from_raw_os_error(-negative)),
        None => Err(Error::other("netlink returned a truncated message")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs in a network namespace that only this thread is in.
    #[test]
    fn an_address_is_replaced_and_the_users_own_is_kept() {
        // SAFETY: only this thread changes its namespace.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
        let ip = |line: &str| {
            let output = std::process::Command::new("ip").args(line.split(' ')).output().unwrap();
            assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        ip("link add eth0 type veth peer name peer0");
        ip("link set peer0 up");
        net::bring_up(None).unwrap();
        ip("addr add 192.0.2.7/24 dev eth0");
        let (first, second) = (Ipv4Addr::new(100, 64, 0, 7), Ipv4Addr::new(100, 64, 0, 8));

        assert_eq!(replace_address((net::INITIAL_ADDRESS, net::INITIAL_PREFIX), first).unwrap(), first);
        assert!(ip("route show default").starts_with("default via 172.30.0.1 dev eth0 src 100.64.0.7 onlink"));
        assert_eq!(replace_address((first, 32), second).unwrap(), second);
        ip("addr del 100.64.0.8/32 dev eth0");
        assert_eq!(replace_address((second, 32), first).unwrap(), first);

        let addresses = ip("-4 -o addr show dev eth0");
        let found: Vec<&str> = addresses.lines().filter_map(|line| line.split_whitespace().nth(3)).collect();
        assert_eq!(found, ["192.0.2.7/24", "100.64.0.7/32"]);
        assert_eq!(ip("route show default").lines().count(), 1);
        assert!(ip("route get 198.18.5.5").contains("src 100.64.0.7"));
    }
}

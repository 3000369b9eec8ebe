//! What it would try over the network, and with sockets of other kinds.

use std::fs;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::time::Duration;

use crate::{Targets, number, report};

pub fn attack(targets: &Targets) {
    let limit = Duration::from_secs(2);
    let mut addresses = vec!["127.0.0.1".to_owned(), "169.254.1.1".to_owned()];
    addresses.extend(targets.get("address").cloned());
    if let Some(port) = targets.get("port") {
        for address in addresses {
            report(&format!("connect to port {address}"), || {
                let address: SocketAddr = format!("{address}:{port}").parse().map_err(|_| ErrorKind::InvalidInput)?;
                TcpStream::connect_timeout(&address, limit).map(drop)
            });
        }
    }
    report("listen on all addresses", || TcpListener::bind("0.0.0.0:0").map(drop));
    report("listen on a port of root", || TcpListener::bind("0.0.0.0:443").map(drop));
    report("see the connections of the machine", || match fs::read_to_string("/proc/self/net/tcp")?.lines().count() {
        0 | 1 => Err(ErrorKind::NotFound.into()),
        lines => Ok(lines),
    });
    for (name, level, option) in [
        ("send from addresses of others", libc::SOL_IP, libc::IP_TRANSPARENT),
        ("mark packets", libc::SOL_SOCKET, libc::SO_MARK),
    ] {
        report(name, || {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            let (on, size) = (1 as libc::c_int, size_of::<libc::c_int>() as libc::socklen_t);
            number(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const on).cast(), size) }.into())
        });
    }
    report("send a datagram", || UdpSocket::bind("0.0.0.0:0")?.send_to(b"x", "127.0.0.1:53"));
    for (name, family, kind) in [
        ("raw packets", libc::AF_PACKET, libc::SOCK_RAW),
        ("raw IP", libc::AF_INET, libc::SOCK_RAW),
        ("netlink", libc::AF_NETLINK, libc::SOCK_RAW),
        ("vsock", libc::AF_VSOCK, libc::SOCK_STREAM),
        ("the kernel's ciphers", libc::AF_ALG, libc::SOCK_SEQPACKET),
        ("Bluetooth", libc::AF_BLUETOOTH, libc::SOCK_RAW),
    ] {
        report(&format!("open a socket for {name}"), || number(unsafe { libc::socket(family, kind, 0) }.into()));
    }
    for (name, protocol) in [
        ("the connections of the machine", libc::NETLINK_SOCK_DIAG),
        ("the rules of the firewall", libc::NETLINK_NETFILTER),
        ("the events of devices", libc::NETLINK_KOBJECT_UEVENT),
        ("the audit log", libc::NETLINK_AUDIT),
    ] {
        report(&format!("ask the kernel for {name}"), || {
            number(unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW, protocol) }.into())
        });
    }
    if let Some(socket) = targets.get("socket") {
        report("connect to a Unix socket outside", || UnixStream::connect(socket).map(drop));
    }
    if let Some(name) = targets.get("abstract") {
        report("connect to an abstract Unix socket outside", || {
            UnixStream::connect_addr(&UnixAddr::from_abstract_name(name)?).map(drop)
        });
    }
    report("listen on an abstract Unix socket and connect", || {
        let address = UnixAddr::from_abstract_name(b"warren-attack")?;
        let _listener = UnixListener::bind_addr(&address)?;
        UnixStream::connect_addr(&address).map(drop)
    });
}

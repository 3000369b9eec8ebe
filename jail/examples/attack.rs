//! What a program would try that has taken over a confined process. For the tests of the confinement.
//!
//! `attack KEY=VALUE …` prints a line for each attempt: its name, a tab, and either `denied` and the reason or `DONE` and
//! what was reached. The values name what is worth attacking on the machine of the test; an attempt whose target was not
//! named is left out.
//!
//! Keys: `pid`, a process outside. `port`, a TCP port on 127.0.0.1 and at `address`. `socket`, a Unix socket. `secret`, a
//! file that only another user may read. `folder`, the folder of another sandbox. `fd`, the descriptor of the own folder.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::mem::zeroed;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr::null;
use std::time::Duration;

/// The only argument of the copy that is executed from the own folder.
const EXECUTED: &str = "executed";

type Targets = HashMap<String, String>;

fn main() {
    if std::env::args().nth(1).as_deref() == Some(EXECUTED) {
        return println!("execute a file from the own folder\tDONE");
    }
    let targets: Targets = std::env::args()
        .skip(1)
        .filter_map(|argument| argument.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned())))
        .collect();
    files(&targets);
    own_folder(&targets);
    processes(&targets);
    network(&targets);
    namespaces(&targets);
    privileges();
    kernel();
    fork_and_execute(&targets);
}

fn report<T: std::fmt::Debug>(name: &str, attempt: impl FnOnce() -> Result<T>) {
    match attempt() {
        Ok(reached) => println!("{name}\tDONE {reached:?}"),
        Err(error) => println!("{name}\tdenied {error}"),
    }
}

fn number(result: libc::c_long) -> Result<libc::c_long> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}

/// A system call without a wrapper.
macro_rules! call {
    ($number:expr $(, $argument:expr)*) => { number(unsafe { libc::syscall($number $(, $argument)*) }) };
}

fn c(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

fn first_bytes(path: &str) -> Result<String> {
    use std::io::Read;
    let mut bytes = [0; 16];
    let read = fs::File::open(path)?.read(&mut bytes)?;
    if read == 0 { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(format!("{:?}", &bytes[..read])) }
}

fn files(targets: &Targets) {
    for path in [
        "/etc/passwd",
        "/etc/shadow",
        "/etc/hostname",
        "/proc/cmdline",
        "/proc/kallsyms",
        "/proc/kcore",
        "/proc/sys/kernel/random/boot_id",
        "/proc/net/tcp",
        "/proc/keys",
        "/proc/config.gz",
        "/dev/mem",
        "/dev/kmsg",
        "/dev/vda",
        "/dev/sda",
        "/dev/net/tun",
        "/dev/urandom",
    ] {
        report(&format!("read {path}"), || first_bytes(path));
    }
    for path in ["/root", "/home", "/sys", "/tmp", "/var", "/run", "/boot", "/etc", "/dev/shm"] {
        report(&format!("list {path}"), || Ok(fs::read_dir(path)?.count()));
    }
    for path in
        ["/new", "/tmp/new", "/dev/shm/new", "/var/tmp/new", "/run/new", "/usr/bin/new", "/dev/new", "/sockets/new"]
    {
        report(&format!("create {path}"), || fs::write(path, "x").map(|()| fs::remove_file(path)));
    }
    report("change the program that everyone runs", || {
        fs::OpenOptions::new().write(true).open("/proc/self/exe").map(drop)
    });
    if let Some(secret) = targets.get("secret") {
        report("read the secret of another user", || first_bytes(secret));
        report("read it through the root of process 1", || first_bytes(&format!("/proc/1/root{secret}")));
    }
    if let Some(folder) = targets.get("folder") {
        report("list the folder of another sandbox", || Ok(fs::read_dir(folder)?.count()));
    }
}

fn own_folder(targets: &Targets) {
    let Some(fd) = targets.get("fd").and_then(|fd| fd.parse::<libc::c_int>().ok()) else { return };
    for up in ["../../etc/hostname", "../../../../../../etc/hostname", "../../../../../../../etc/passwd"] {
        report(&format!("open {up} from the own folder"), || {
            call!(libc::SYS_openat, fd, c(up).as_ptr(), libc::O_RDONLY).map(drop)
        });
    }
    let own = format!("/proc/self/fd/{fd}");
    report("make a device node", || call!(libc::SYS_mknodat, fd, c"disk".as_ptr(), libc::S_IFBLK | 0o666, 0xfe00));
    report("link a file to another user's", || {
        call!(libc::SYS_symlinkat, c"/etc/passwd".as_ptr(), fd, c"link".as_ptr())
    });
    report("make a file of set user id", || {
        fs::write(format!("{own}/suid"), "")?;
        call!(libc::SYS_fchownat, fd, c"suid".as_ptr(), 0, 0, 0)
    });
    report("make a file larger than any disk", || {
        let file = fs::File::create(format!("{own}/large"))?;
        file.set_len(1 << 40)
    });
}

fn processes(targets: &Targets) {
    report("see other processes", || {
        let pids =
            fs::read_dir("/proc")?.flatten().filter(|entry| entry.file_name().to_string_lossy().parse::<u32>().is_ok());
        let own = std::process::id().to_string();
        let others: Vec<_> = pids.map(|entry| entry.file_name()).filter(|pid| pid != "1" && *pid != *own).collect();
        if others.is_empty() { Err(ErrorKind::NotFound.into()) } else { Ok(others) }
    });
    report("signal every process", || number(unsafe { libc::kill(-1, 0) }.into()));
    let Some(pid) = targets.get("pid").and_then(|pid| pid.parse::<libc::pid_t>().ok()) else { return };
    report("signal a process outside", || number(unsafe { libc::kill(pid, 0) }.into()));
    report("signal its thread", || call!(libc::SYS_tgkill, pid, pid, 0));
    report("open it as a descriptor", || call!(libc::SYS_pidfd_open, pid, 0));
    report("trace it", || call!(libc::SYS_ptrace, libc::PTRACE_SEIZE, pid, 0, 0));
    report("read its memory", || {
        let mut byte = 0u8;
        let here = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let there = libc::iovec { iov_base: 0x40_0000 as *mut _, iov_len: 1 };
        call!(libc::SYS_process_vm_readv, pid, &here, 1, &there, 1, 0)
    });
    for name in ["cmdline", "environ", "maps", "mem", "root/etc/passwd", "cwd/.", "ns/net"] {
        report(&format!("read {name} of it"), || fs::metadata(format!("/proc/{pid}/{name}")).map(drop));
    }
    report("change its priority", || number(unsafe { libc::setpriority(libc::PRIO_PROCESS, pid as u32, 19) }.into()));
    report("move it to other processors", || {
        let set: libc::cpu_set_t = unsafe { zeroed() };
        number(unsafe { libc::sched_setaffinity(pid, size_of_val(&set), &set) }.into())
    });
}

fn network(targets: &Targets) {
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
    if let Some(socket) = targets.get("socket") {
        report("connect to a Unix socket outside", || UnixStream::connect(socket).map(drop));
    }
    report("listen on an abstract Unix socket and connect", || {
        use std::os::linux::net::SocketAddrExt;
        let address = std::os::unix::net::SocketAddr::from_abstract_name(b"warren-attack")?;
        let _listener = UnixListener::bind_addr(&address)?;
        UnixStream::connect_addr(&address).map(drop)
    });
}

fn namespaces(targets: &Targets) {
    for (name, flag) in [
        ("user", libc::CLONE_NEWUSER),
        ("mount", libc::CLONE_NEWNS),
        ("network", libc::CLONE_NEWNET),
        ("pid", libc::CLONE_NEWPID),
    ] {
        report(&format!("make a {name} namespace"), || number(unsafe { libc::unshare(flag) }.into()));
    }
    if let Some(pid) = targets.get("pid") {
        report("enter the network of a process outside", || {
            let file = fs::File::open(format!("/proc/{pid}/ns/net"))?;
            number(unsafe { libc::setns(std::os::fd::AsRawFd::as_raw_fd(&file), libc::CLONE_NEWNET) }.into())
        });
    }
    report("mount a file system", || {
        number(unsafe { libc::mount(c"t".as_ptr(), c"/work".as_ptr(), c"tmpfs".as_ptr(), 0, null()) }.into())
    });
    report("make the root writable", || {
        let flags = libc::MS_REMOUNT | libc::MS_BIND;
        number(unsafe { libc::mount(null(), c"/".as_ptr(), null(), flags, null()) }.into())
    });
    report("unmount /proc", || number(unsafe { libc::umount2(c"/proc".as_ptr(), libc::MNT_DETACH) }.into()));
    report("change the root", || number(unsafe { libc::chroot(c"/usr".as_ptr()) }.into()));
    report("open a file by its handle", || call!(libc::SYS_open_by_handle_at, libc::AT_FDCWD, null::<u8>(), 0));
}

fn privileges() {
    report("become root", || number(unsafe { libc::setuid(0) }.into()));
    report("become another user", || number(unsafe { libc::setuid(1) }.into()));
    report("join the group of root", || number(unsafe { libc::setgid(0) }.into()));
    report("take another group", || number(unsafe { libc::setgroups(1, &1) }.into()));
    report("raise the limit of open files", || {
        let limit = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 20 };
        number(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }.into())
    });
    report("write core dumps", || {
        let limit = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 20 };
        number(unsafe { libc::setrlimit(libc::RLIMIT_CORE, &limit) }.into())
    });
    report("run before all others", || {
        let parameter = libc::sched_param { sched_priority: 1 };
        number(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &parameter) }.into())
    });
    report("lock memory without limit", || number(unsafe { libc::mlockall(libc::MCL_FUTURE) }.into()));
    report("set the host name", || number(unsafe { libc::sethostname(c"x".as_ptr(), 1) }.into()));
    report("set the clock", || {
        let now: libc::timespec = unsafe { zeroed() };
        number(unsafe { libc::clock_settime(libc::CLOCK_REALTIME, &now) }.into())
    });
}

fn kernel() {
    let nothing = null::<u8>();
    for (name, number) in [
        ("load a module", libc::SYS_init_module),
        ("load a program into the kernel", libc::SYS_bpf),
        ("watch performance events", libc::SYS_perf_event_open),
        ("use io_uring", libc::SYS_io_uring_setup),
        ("handle page faults", libc::SYS_userfaultfd),
        ("start another kernel", libc::SYS_kexec_load),
        ("read the kernel's log", libc::SYS_syslog),
        ("add swap space", libc::SYS_swapon),
        ("watch all files", libc::SYS_fanotify_init),
        ("share memory", libc::SYS_shmget),
        ("make a message queue", libc::SYS_msgget),
        ("add a key", libc::SYS_add_key),
        ("read the keyring", libc::SYS_keyctl),
        ("use another ABI's personality", libc::SYS_personality),
    ] {
        report(name, || call!(number, nothing, nothing, 0, 0, 0));
    }
    report("make an anonymous file", || call!(libc::SYS_memfd_create, c"x".as_ptr(), 0));
    #[cfg(target_arch = "x86_64")]
    report("use the machine's ports", || call!(libc::SYS_iopl, 3));
    report("type into a terminal", || number(unsafe { libc::ioctl(0, libc::TIOCSTI, c"x".as_ptr()) }.into()));
}

/// Last, because an execution that succeeds replaces this process.
fn fork_and_execute(targets: &Targets) {
    report("fork", || match number(unsafe { libc::fork() }.into())? {
        0 => std::process::exit(0),
        pid => Ok(pid),
    });
    let copy = format!("/proc/self/fd/{}/copy", targets.get("fd").map_or("0", String::as_str));
    let copied = fs::copy("/proc/self/exe", &copy);
    report("execute a file from the own folder", || {
        copied?;
        Err::<(), _>(Command::new(copy).arg(EXECUTED).exec())
    });
    let script = r"printf 'execute a shell\tDONE\n'";
    report("execute a shell", || Err::<(), _>(Command::new("/bin/sh").args(["-c", script]).exec()));
}

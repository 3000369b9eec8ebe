//! What a program would try that has taken over a confined process. For the tests of the confinement.
//!
//! `attack KEY=VALUE …` prints a line for each attempt: its name, a tab, and either `denied` and the reason or `DONE` and
//! what was reached. The values name what is worth attacking on the machine of the test; an attempt whose target was not
//! named is left out.
//!
//! Keys: `pid`, a process outside. `port`, a TCP port on 127.0.0.1 and at `address`. `socket`, a Unix socket. `secret`, a
//! file that only another user may read. `folder`, the folder of another sandbox. `fd`, the descriptor of the own folder, or
//! `own`, its path. `netns`, the network namespace of a sandbox. `abstract`, the name of an abstract Unix socket. `flood`, for a
//! user that no other program has: its other processes could not start any. `read:NAME`, `write:NAME`, `list:NAME`,
//! `create:NAME` and `connect:NAME`, paths that are attempted under that name.

mod network;

use std::collections::HashMap;
use std::ffi::CString;
use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::mem::zeroed;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr::null;

/// The only argument of the copy that is executed from the own folder.
const EXECUTED: &str = "executed";

type Targets = HashMap<String, String>;

fn main() {
    if std::env::args().nth(1).as_deref() == Some(EXECUTED) {
        return println!("execute a file from the own folder\tDONE");
    }
    let mut targets: Targets = std::env::args()
        .skip(1)
        .filter_map(|argument| argument.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned())))
        .collect();
    let own = targets.get("own").and_then(|path| fs::File::open(path).ok());
    if let Some(folder) = &own {
        targets.insert("fd".to_owned(), folder.as_raw_fd().to_string());
    }
    files(&targets);
    named(&targets);
    own_folder(&targets);
    processes(&targets);
    network::attack(&targets);
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
    for path in ["/dev/fuse", "/dev/vhost-net", "/dev/loop-control", "/dev/ptmx", "/dev/tty", "/dev/console"] {
        report(&format!("open {path}"), || fs::OpenOptions::new().read(true).write(true).open(path).map(drop));
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

/// Nothing is changed where an attempt succeeds.
fn named(targets: &Targets) {
    let mut sorted: Vec<_> = targets.iter().filter_map(|(key, path)| Some((key.split_once(':')?, path))).collect();
    sorted.sort();
    for ((kind, name), path) in sorted {
        report(&format!("{kind} {name}"), || match kind {
            "read" => first_bytes(path),
            "write" => fs::OpenOptions::new().append(true).open(path).map(|_| "opened".to_owned()),
            "list" => Ok(fs::read_dir(path)?.count().to_string()),
            "create" => {
                let file = format!("{path}/warren-attack");
                fs::write(&file, "")?;
                fs::remove_file(&file).map(|()| "created".to_owned())
            }
            "connect" => UnixStream::connect(path).map(|_| "connected".to_owned()),
            _ => Err(ErrorKind::InvalidInput.into()),
        });
    }
}

fn own_folder(targets: &Targets) {
    let Some(fd) = targets.get("fd").and_then(|fd| fd.parse::<libc::c_int>().ok()) else { return };
    for up in ["../../etc/hostname", "../../../../../../etc/hostname", "../../../../../../../etc/passwd"] {
        report(&format!("open {up} from the own folder"), || {
            call!(libc::SYS_openat, fd, c(up).as_ptr(), libc::O_RDONLY).map(drop)
        });
    }
    let own = own_path(targets);
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

/// Some jails have no `/proc`.
fn own_path(targets: &Targets) -> String {
    let fd = targets.get("fd").map_or("0", String::as_str);
    targets.get("own").cloned().unwrap_or(format!("/proc/self/fd/{fd}"))
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
    // QEMU is the first process of its jail. Others have one beside them that fewer rules apply to.
    if std::process::id() != 1 {
        report("read the environment of process 1", || first_bytes("/proc/1/environ"));
        report("open the memory of process 1", || {
            fs::OpenOptions::new().read(true).write(true).open("/proc/1/mem").map(drop)
        });
        report("trace process 1", || call!(libc::SYS_ptrace, libc::PTRACE_SEIZE, 1, 0, 0));
        report("take a descriptor of process 1", || {
            let process = call!(libc::SYS_pidfd_open, 1, 0)?;
            call!(libc::SYS_pidfd_getfd, process, 0, 0)
        });
    }
    if targets.contains_key("flood") {
        report("start a thousand processes", start_a_thousand);
    }
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

fn start_a_thousand() -> Result<usize> {
    let mut started = Vec::new();
    let outcome = loop {
        match unsafe { libc::fork() } {
            0 => loop {
                unsafe { libc::pause() };
            },
            -1 => break Err(Error::last_os_error()),
            pid => started.push(pid),
        }
        if started.len() == 1_000 {
            break Ok(started.len());
        }
    };
    for pid in started {
        unsafe {
            libc::kill(pid, libc::SIGKILL);
            libc::waitpid(pid, std::ptr::null_mut(), 0);
        }
    }
    outcome
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
        report("enter the network of a process outside", || enter_network(&format!("/proc/{pid}/ns/net")));
    }
    if let Some(path) = targets.get("netns") {
        report("enter the network of a sandbox", || enter_network(path));
    }
    report("make a user namespace by clone3", || {
        let mut args = [0u64; 11];
        (args[0], args[4]) = (libc::CLONE_NEWUSER as u64, libc::SIGCHLD as u64);
        match call!(libc::SYS_clone3, args.as_ptr(), size_of_val(&args))? {
            0 => std::process::exit(0),
            pid => Ok(pid),
        }
    });
    report("mount a file system", || {
        number(unsafe { libc::mount(c"t".as_ptr(), c"/work".as_ptr(), c"tmpfs".as_ptr(), 0, null()) }.into())
    });
    report("make the root writable", || {
        let flags = libc::MS_REMOUNT | libc::MS_BIND;
        number(unsafe { libc::mount(null(), c"/".as_ptr(), null(), flags, null()) }.into())
    });
    report("unmount /proc", || number(unsafe { libc::umount2(c"/proc".as_ptr(), libc::MNT_DETACH) }.into()));
    report("open a mount", || call!(libc::SYS_open_tree, libc::AT_FDCWD, c"/".as_ptr(), 0));
    report("copy the mounts", || call!(libc::SYS_open_tree, libc::AT_FDCWD, c"/".as_ptr(), libc::OPEN_TREE_CLONE));
    report("open a file system", || call!(libc::SYS_fsopen, c"tmpfs".as_ptr(), 0));
    report("exchange the root", || call!(libc::SYS_pivot_root, c"/".as_ptr(), c"/".as_ptr()));
    report("change the root", || number(unsafe { libc::chroot(c"/usr".as_ptr()) }.into()));
    report("open a file by its handle", || call!(libc::SYS_open_by_handle_at, libc::AT_FDCWD, null::<u8>(), 0));
}

fn enter_network(path: &str) -> Result<libc::c_long> {
    let file = fs::File::open(path)?;
    number(unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) }.into())
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
        ("request a key", libc::SYS_request_key),
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
    let copy = format!("{}/copy", own_path(targets));
    let copied = fs::copy(std::env::args().next().unwrap_or_default(), &copy);
    report("execute a file from the own folder", || {
        copied?;
        Err::<(), _>(Command::new(copy).arg(EXECUTED).exec())
    });
    let script = r"printf 'execute a shell\tDONE\n'";
    report("execute a shell", || Err::<(), _>(Command::new("/bin/sh").args(["-c", script]).exec()));
}

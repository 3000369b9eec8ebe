//! The command line of a service's jail: what the service may see and use. Everything that is not named is out of reach.

use crate::privileges::Resource;
use crate::sys::number;

#[derive(Default)]
pub struct Options {
    pub uid: libc::uid_t,
    pub gid: libc::gid_t,
    /// Supplementary groups.
    pub groups: Vec<libc::gid_t>,
    pub entries: Vec<Entry>,
    /// Whether it keeps the network of the machine. Otherwise it has none.
    pub network: bool,
    /// Whether it has sockets for IP only. In the network of the machine, Unix sockets reach the abstract ones of all its
    /// programs and can take their names, and netlink lists their connections.
    pub ip_only: bool,
    /// Whether it has no `/proc`, in which a process of the machine's network sees the connections of all others.
    pub without_proc: bool,
    /// The caller, whose end sends `death_signal` to the program.
    pub parent: libc::pid_t,
    pub death_signal: libc::c_int,
    pub limits: Vec<(Resource, u64)>,
    pub program: String,
    pub args: Vec<String>,
}

/// One path in the root directory of the service.
pub struct Entry {
    pub path: String,
    pub kind: Kind,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A file or folder of the machine, with everything that is mounted in it.
    Read(String),
    Write(String),
    Device(String),
    /// A symbolic link, and where it leads to.
    Link(String),
    /// A file with this content.
    Text(String),
}

const USAGE: &str = "usage: jail service --uid N --gid N --parent PID [--death-signal TERM|INT|KILL] [--groups N,N]
            [--read FROM AT] [--write FROM AT] [--device FROM AT] [--link TO AT] [--text CONTENT AT]
            [--network] [--ip-only] [--without-proc] [--limit fsize|nofile|nproc N] -- PROGRAM [ARG …]";

impl Options {
    pub fn parse(args: impl IntoIterator<Item = String>) -> Result<Options, String> {
        let mut args = args.into_iter();
        let mut options = Options { death_signal: libc::SIGTERM, ..Options::default() };
        while let Some(option) = args.next() {
            let mut value = || args.next().ok_or(format!("{option} needs a value\n{USAGE}"));
            let kind: Option<fn(String) -> Kind> = match option.as_str() {
                "--read" => Some(Kind::Read),
                "--write" => Some(Kind::Write),
                "--device" => Some(Kind::Device),
                "--link" => Some(Kind::Link),
                "--text" => Some(Kind::Text),
                _ => None,
            };
            if let Some(kind) = kind {
                let kind = kind(value()?);
                options.entries.push(Entry { path: value()?, kind });
                continue;
            }
            match option.as_str() {
                "--uid" => options.uid = number(&value()?)?,
                "--gid" => options.gid = number(&value()?)?,
                "--groups" => options.groups = value()?.split(',').map(number).collect::<Result<_, _>>()?,
                "--network" => options.network = true,
                "--ip-only" => options.ip_only = true,
                "--without-proc" => options.without_proc = true,
                "--parent" => options.parent = number(&value()?)?,
                "--death-signal" => options.death_signal = signal(&value()?)?,
                "--limit" => options.limits.push((Resource::parse(&value()?)?, number(&value()?)?)),
                "--" => {
                    options.program = value()?;
                    options.args = args.by_ref().collect();
                }
                _ => return Err(format!("unknown option {option}\n{USAGE}")),
            }
        }
        options.check()
    }

    /// A forgotten option must not mean more privileges.
    fn check(mut self) -> Result<Options, String> {
        let missing = [
            ("--uid (not 0)", self.uid == 0),
            ("--gid (not 0)", self.gid == 0),
            ("--parent", self.parent <= 0),
            ("an absolute path of a program", !self.program.starts_with('/')),
        ];
        if let Some((what, _)) = missing.iter().find(|(_, is_missing)| *is_missing) {
            return Err(format!("{what} is required\n{USAGE}"));
        }
        if self.groups.contains(&0) {
            return Err("the group 0 cannot be given".to_owned());
        }
        if let Some(entry) = self.entries.iter().find(|entry| !is_plain(&entry.path)) {
            return Err(format!("{} must be an absolute path without . and ..", entry.path));
        }
        // A folder comes before what is inside it. The order of equal paths stays: the last one is on top.
        self.entries.sort_by(|a, b| parts(&a.path).cmp(parts(&b.path)));
        Ok(self)
    }
}

pub fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|part| !part.is_empty())
}

fn is_plain(path: &str) -> bool {
    path.starts_with('/') && parts(path).next().is_some() && parts(path).all(|part| part != "." && part != "..")
}

fn signal(name: &str) -> Result<libc::c_int, String> {
    match name {
        "TERM" => Ok(libc::SIGTERM),
        "INT" => Ok(libc::SIGINT),
        "KILL" => Ok(libc::SIGKILL),
        _ => Err(format!("unknown signal {name}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINIMUM: &str = "--uid 9 --gid 9 --parent 7 -- /bin/true";

    fn parse(line: &str) -> Result<Options, String> {
        Options::parse(line.split(' ').map(str::to_owned))
    }

    #[test]
    fn a_minimal_command_line_gives_nothing() {
        let options = parse(MINIMUM).unwrap();
        assert!(options.entries.is_empty() && options.groups.is_empty() && !options.network);
        assert_eq!((options.program.as_str(), options.args.len()), ("/bin/true", 0));
    }

    #[test]
    fn options_after_the_program_belong_to_it() {
        let options = parse(&format!("{MINIMUM} --network --")).unwrap();
        assert_eq!(options.args, ["--network", "--"]);
        assert!(!options.network);
    }

    #[test]
    fn a_folder_is_mounted_before_what_is_inside_it() {
        let options = parse(&format!("--read /a/b /a/b --write /x /a/b.c --read /a /a --link /y /a/b/c {MINIMUM}"));
        let paths: Vec<String> = options.unwrap().entries.into_iter().map(|entry| entry.path).collect();
        assert_eq!(paths, ["/a", "/a/b", "/a/b/c", "/a/b.c"]);
    }

    #[test]
    fn a_forgotten_or_dangerous_option_is_refused() {
        for (line, message) in [
            ("--gid 9 --parent 7 -- /bin/true", "--uid (not 0) is required"),
            ("--uid 0 --gid 9 --parent 7 -- /bin/true", "--uid (not 0) is required"),
            ("--uid 9 --parent 7 -- /bin/true", "--gid (not 0) is required"),
            ("--uid 9 --gid 9 -- /bin/true", "--parent is required"),
            ("--uid 9 --gid 9 --parent 7", "an absolute path of a program is required"),
            ("--uid 9 --gid 9 --parent 7 -- true", "an absolute path of a program is required"),
            ("--groups 5,0 --uid 9 --gid 9 --parent 7 -- /bin/true", "the group 0 cannot be given"),
            ("--read /a ../b --uid 9 --gid 9 --parent 7 -- /bin/true", "../b must be an absolute path"),
            ("--read /a /b/../c --uid 9 --gid 9 --parent 7 -- /bin/true", "/b/../c must be an absolute path"),
            ("--write /a / --uid 9 --gid 9 --parent 7 -- /bin/true", "/ must be an absolute path"),
            ("--death-signal STOP --uid 9 --gid 9 --parent 7 -- /bin/true", "unknown signal STOP"),
            ("--limit stack 1 --uid 9 --gid 9 --parent 7 -- /bin/true", "unknown limit stack"),
            ("--bind /a /b", "unknown option --bind"),
            ("--read /a", "--read needs a value"),
        ] {
            let error = parse(line).err().unwrap_or_default();
            assert!(error.starts_with(message), "{line}: {error}");
        }
    }
}

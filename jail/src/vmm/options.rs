//! The command line of QEMU's jail: what it may see and use. Everything that is not named is out of reach.

use crate::privileges::Resource;
use crate::sys::number;

pub struct Options {
    /// A folder that becomes the read-only root directory.
    pub root: String,
    pub binds: Vec<Bind>,
    /// Folders inside the jail that the program gets as open descriptors.
    pub folders: Vec<(String, libc::c_int)>,
    pub uid: libc::uid_t,
    pub gid: libc::gid_t,
    /// Supplementary groups.
    pub groups: Vec<libc::gid_t>,
    pub filter_system_calls: bool,
    /// SIGKILL when the jail's caller ends.
    pub dies_with_parent: bool,
    pub limits: Vec<(Resource, u64)>,
    /// Files that a pid is written into to move the process.
    pub cgroups: Vec<String>,
    /// When the machine runs out of memory, the kernel kills processes with a higher one first.
    pub oom_score: Option<i32>,
    /// Descriptor of the report.
    pub report: libc::c_int,
    pub program: String,
    pub args: Vec<String>,
}

pub struct Bind {
    pub source: String,
    /// Exists in the root folder.
    pub target: String,
    pub access: Access,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    Read,
    Write,
    /// A device node, which can be opened.
    Device,
}

const USAGE: &str =
    "usage: jail --root DIR --uid N --gid N --report FD [--groups N,N] [--read FROM TO] [--write FROM TO]
            [--device FROM TO] [--folder PATH FD] [--filter] [--dies-with-parent] [--cgroup FILE]
            [--oom-score N] [--limit fsize|nofile|nproc N] -- PROGRAM [ARG …]";

impl Options {
    pub fn parse(args: impl IntoIterator<Item = String>) -> Result<Options, String> {
        let mut args = args.into_iter();
        let mut options = Options {
            root: String::new(),
            binds: Vec::new(),
            folders: Vec::new(),
            uid: 0,
            gid: 0,
            groups: Vec::new(),
            filter_system_calls: false,
            dies_with_parent: false,
            limits: Vec::new(),
            cgroups: Vec::new(),
            oom_score: None,
            report: -1,
            program: String::new(),
            args: Vec::new(),
        };
        while let Some(option) = args.next() {
            let mut value = || args.next().ok_or(format!("{option} needs a value\n{USAGE}"));
            match option.as_str() {
                "--root" => options.root = value()?,
                "--read" => options.binds.push(Bind { source: value()?, target: value()?, access: Access::Read }),
                "--write" => options.binds.push(Bind { source: value()?, target: value()?, access: Access::Write }),
                "--device" => options.binds.push(Bind { source: value()?, target: value()?, access: Access::Device }),
                "--folder" => options.folders.push((value()?, number(&value()?)?)),
                "--uid" => options.uid = number(&value()?)?,
                "--gid" => options.gid = number(&value()?)?,
                "--groups" => options.groups = value()?.split(',').map(number).collect::<Result<_, _>>()?,
                "--filter" => options.filter_system_calls = true,
                "--dies-with-parent" => options.dies_with_parent = true,
                "--limit" => options.limits.push((Resource::parse(&value()?)?, number(&value()?)?)),
                "--cgroup" => options.cgroups.push(value()?),
                "--oom-score" => options.oom_score = Some(number(&value()?)?),
                "--report" => options.report = number(&value()?)?,
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
    fn check(self) -> Result<Options, String> {
        let missing = [
            ("--root", !self.root.starts_with('/')),
            ("--uid (not 0)", self.uid == 0),
            ("--gid (not 0)", self.gid == 0),
            ("--report", self.report < 3),
            ("an absolute path of a program", !self.program.starts_with('/')),
        ];
        match missing.iter().find(|(_, is_missing)| *is_missing) {
            Some((what, _)) => Err(format!("{what} is required\n{USAGE}")),
            None if self.groups.contains(&0) => Err("the group 0 cannot be given".to_owned()),
            None => Ok(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINIMUM: &str = "--root /jail --uid 9 --gid 9 --report 3 -- /bin/true";

    fn parse(line: &str) -> Result<Options, String> {
        Options::parse(line.split(' ').map(str::to_owned))
    }

    #[test]
    fn a_minimal_command_line_gives_nothing_but_the_root() {
        let options = parse(MINIMUM).unwrap();
        assert!(options.binds.is_empty() && options.groups.is_empty());
        assert_eq!((options.program.as_str(), options.args.len()), ("/bin/true", 0));
    }

    #[test]
    fn options_after_the_program_belong_to_it() {
        let options = parse(&format!("{MINIMUM} --root /other --")).unwrap();
        assert_eq!(options.args, ["--root", "/other", "--"]);
        assert_eq!(options.root, "/jail");
    }

    #[test]
    fn a_forgotten_or_dangerous_option_is_refused() {
        for (line, message) in [
            ("--uid 9 --gid 9 --report 3 -- /bin/true", "--root is required"),
            ("--root /jail --gid 9 --report 3 -- /bin/true", "--uid (not 0) is required"),
            ("--root /jail --uid 0 --gid 9 --report 3 -- /bin/true", "--uid (not 0) is required"),
            ("--root /jail --uid 9 --report 3 -- /bin/true", "--gid (not 0) is required"),
            ("--root /jail --uid 9 --gid 9 -- /bin/true", "--report is required"),
            ("--root /jail --uid 9 --gid 9 --report 3", "an absolute path of a program is required"),
            ("--root /jail --uid 9 --gid 9 --report 3 -- true", "an absolute path of a program is required"),
            ("--root /jail --uid -1 --gid 9 --report 3 -- /bin/true", "-1 is not a number"),
            ("--groups 0 --root /jail --uid 9 --gid 9 --report 3 -- /bin/true", "the group 0 cannot be given"),
            ("--groups 1,x --root /jail --uid 9 --gid 9 --report 3 -- /bin/true", "x is not a number"),
            ("--limit stack 1 --root /jail --uid 9 --gid 9 --report 3 -- /bin/true", "unknown limit stack"),
            ("--oom-score high --root /jail --uid 9 --gid 9 --report 3 -- /bin/true", "high is not a number"),
            ("--bind /a /b", "unknown option --bind"),
            ("--read /a", "--read needs a value"),
        ] {
            let error = parse(line).err().unwrap_or_default();
            assert!(error.starts_with(message), "{line}: {error}");
        }
    }
}

//! What is needed of the command line of the jail (jail/src/vmm/options.rs) and of QEMU after it.

use std::io::{Error, Result};

#[derive(Debug, Default, PartialEq)]
pub struct CommandLine {
    /// The folder of the sockets on the machine.
    pub sockets: String,
    pub work: String,
    pub cgroups: Vec<String>,
    pub report: i32,
    pub dies_with_parent: bool,
    /// QEMU would load a saved state, rather than boot a kernel.
    pub is_clone: bool,
}

impl CommandLine {
    pub fn parse(args: &[String]) -> Result<CommandLine> {
        let mut options = CommandLine { report: -1, ..CommandLine::default() };
        let (own, qemu) = match args.iter().position(|arg| arg == "--") {
            Some(at) => args.split_at(at),
            None => return Err(Error::other("the command line has no program")),
        };
        let mut own = own.iter();
        while let Some(option) = own.next() {
            let mut value = || own.next().cloned().ok_or_else(|| Error::other(format!("{option} needs a value")));
            match option.as_str() {
                "--write" => match (value()?, value()?.as_str()) {
                    (source, "/sockets") => options.sockets = source,
                    (source, "/work") => options.work = source,
                    _ => {}
                },
                "--cgroup" => options.cgroups.push(value()?),
                "--report" => options.report = value()?.parse().map_err(Error::other)?,
                "--dies-with-parent" => options.dies_with_parent = true,
                _ => {} // About confinement.
            }
        }
        options.is_clone = qemu.iter().any(|arg| arg == "-incoming");
        if options.report < 3 || options.sockets.is_empty() || options.work.is_empty() {
            return Err(Error::other("usage: native-vmm with the command line of the jail"));
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<CommandLine> {
        CommandLine::parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    const JAIL: &str = "--root /r --uid 9 --gid 9 --write /run/s /sockets --write /data/w /work --folder /work 6 \
                        --limit nofile 9 --filter --cgroup /c --report 12 --";

    #[test]
    fn a_clone_is_told_from_a_boot_by_the_options_of_qemu() {
        let clone = parse(&format!("{JAIL} /usr/bin/qemu -incoming defer")).unwrap();
        assert!(clone.is_clone);
        assert_eq!((clone.sockets.as_str(), clone.work.as_str(), clone.report), ("/run/s", "/data/w", 12));
        assert_eq!(clone.cgroups, ["/c"]);
        assert!(!parse(&format!("{JAIL} /usr/bin/qemu -kernel /k")).unwrap().is_clone);
    }

    #[test]
    fn another_command_line_is_refused() {
        assert!(parse("--help").is_err());
        assert!(parse("--report 3 -- /usr/bin/qemu").is_err());
    }
}

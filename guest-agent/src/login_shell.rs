//! Finds the login shell: that of root in /etc/passwd, or else one of the usual paths.

use std::fs;
use std::os::unix::fs::PermissionsExt;

const FALLBACK_SHELLS: [&str; 3] = ["/bin/bash", "/bin/sh", "/bin/ash"];

pub struct LoginShell {
    pub path: String,
    /// `-bash`: the leading dash tells a shell that it is a login shell.
    pub name: String,
}

/// Reads files, so it must run on a worker thread. None if the image has no shell.
pub fn find_login_shell() -> Option<LoginShell> {
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let fallbacks = FALLBACK_SHELLS.map(str::to_owned);
    let path = shell_of_root(&passwd).into_iter().chain(fallbacks).find(|path| is_program(path))?;
    let name = format!("-{}", path.rsplit('/').next().unwrap_or_default());
    Some(LoginShell { path, name })
}

fn shell_of_root(passwd: &str) -> Option<String> {
    let fields = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let root =
        fields.filter(|fields| fields.get(2) == Some(&"0")).find_map(|fields| Some((*fields.get(6)?).to_owned()));
    // A shell that rejects logins would lock out the owner of the machine.
    root.filter(|shell| shell.starts_with('/') && !shell.ends_with("/nologin") && !shell.ends_with("/false"))
}

fn is_program(path: &str) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shell_of_root_is_the_last_field_of_uid_0() {
        let passwd = "daemon:x:1:1::/:/bin/dash\nroot:x:0:0:root:/root:/bin/zsh\n";

        assert_eq!(shell_of_root(passwd).as_deref(), Some("/bin/zsh"));
        assert_eq!(shell_of_root("root:x:0:0:root:/root:/usr/sbin/nologin"), None);
        assert_eq!(shell_of_root("root:x:0:0:root:/root:"), None);
        assert_eq!(shell_of_root("root:x"), None);
    }
}

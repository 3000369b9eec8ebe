//! Edits a block of lines, between two markers, in a file that the user also edits. The block is replaced as a whole
//! and everything else is left unchanged.

use std::fs;
use std::io::{ErrorKind, Result, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

const BEGIN: &str = "# warren: begin (rewritten by the sandbox service)";
const END: &str = "# warren: end";

/// Returns `text` with its block replaced by `lines`, or with a block appended.
pub fn render(text: &str, lines: &[String]) -> String {
    let block: String = [BEGIN]
        .into_iter()
        .chain(lines.iter().map(String::as_str))
        .chain([END])
        .fold(String::new(), |all, line| all + line + "\n");
    let (mut before, mut after, mut inside, mut seen) = (String::new(), String::new(), false, false);
    for line in text.lines() {
        match line {
            BEGIN => (inside, seen) = (true, true),
            END if inside => inside = false,
            _ if inside => {}
            line if seen => after = after + line + "\n",
            line => before = before + line + "\n",
        }
    }
    before + &block + &after
}

/// The lines outside the block.
pub fn lines_outside(text: &str) -> Vec<&str> {
    let mut inside = false;
    let outside = text.lines().filter(|line| {
        let was_inside = inside;
        inside = *line == BEGIN || (inside && *line != END);
        !was_inside && !inside
    });
    outside.collect()
}

/// Writes a temporary file and renames it, so that no reader sees a partial file; a symbolic link is replaced by the
/// file. A file that already has this content is not written: that is the usual case when a machine is resumed, and
/// every write would have to be saved by its next pause.
pub fn write_file(path: &Path, text: &str, mode: u32) -> Result<()> {
    if is_unchanged(path, text, mode) {
        return Ok(());
    }
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".warren-new");
    let write = || {
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(mode).open(&temporary)?;
        file.write_all(text.as_bytes())?;
        fs::set_permissions(&temporary, fs::Permissions::from_mode(mode))?;
        fs::rename(&temporary, path)
    };
    write().inspect_err(|_| drop(fs::remove_file(&temporary)))
}

fn is_unchanged(path: &Path, text: &str, mode: u32) -> bool {
    let found = fs::symlink_metadata(path);
    let is_same_kind = found.is_ok_and(|found| {
        found.is_file() && found.len() == text.len() as u64 && found.permissions().mode() & 0o7777 == mode
    });
    is_same_kind && fs::read(path).is_ok_and(|bytes| bytes == text.as_bytes())
}

/// Returns an empty string if the file does not exist.
pub fn read_file(path: &Path) -> Result<String> {
    match fs::read(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn the_block_is_added_replaced_and_never_duplicated() {
        let first = render("a\nb", &["x".into()]);
        let second = render(&(first.clone() + "c\n"), &["y".into(), "z".into()]);

        assert_eq!(first, format!("a\nb\n{BEGIN}\nx\n{END}\n"));
        assert_eq!(second, format!("a\nb\n{BEGIN}\ny\nz\n{END}\nc\n"));
        assert_eq!(lines_outside(&second), ["a", "b", "c"]);
    }

    #[test]
    fn only_changed_files_are_written() {
        let path = std::env::temp_dir().join(format!("warren-block-{}", std::process::id()));
        let number = || fs::metadata(&path).map(|found| found.ino()).ok();
        let write = |text, mode| write_file(&path, text, mode).ok().and_then(|()| number());

        let first = write("one\n", 0o644);
        let again = write("one\n", 0o644);
        let other = write("two\n", 0o644);
        let stricter = write("two\n", 0o600);
        let mode = fs::metadata(&path).map(|found| found.permissions().mode() & 0o777).ok();
        let text = read_file(&path).ok();
        let _ = fs::remove_file(&path);

        assert!(first.is_some() && first == again);
        assert_ne!(again, other);
        assert_ne!(other, stricter);
        assert_eq!((mode, text.as_deref()), (Some(0o600), Some("two\n")));
    }
}

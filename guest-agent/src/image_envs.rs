//! The variables that an image defines, such as those of ENV in the Dockerfile of a template. They are a file of the image,
//! so everything that starts from it has them: a clone, a fork, a machine that is booted from its disk.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::folders;
use crate::kmsg::log;
use crate::marked_block::write_file;

const FILE: &str = "etc/warren/environment.json";
/// 64 KiB of variables, and JSON may take six bytes for one.
const FILE_MAX_BYTES: u64 = 512 * 1024;

/// A file that is damaged counts as absent: the machine must start nevertheless.
pub fn read(root: &Path) -> BTreeMap<String, String> {
    let path = root.join(FILE);
    let Ok(found) = fs::metadata(&path) else { return BTreeMap::new() };
    let text = (found.is_file() && found.len() <= FILE_MAX_BYTES).then(|| fs::read(&path).ok()).flatten();
    let envs = text.and_then(|text| serde_json::from_slice::<BTreeMap<String, String>>(&text).ok());
    match envs.filter(is_usable) {
        Some(envs) => envs,
        None => {
            log(&format!("failed to read /{FILE}"));
            BTreeMap::new()
        }
    }
}

pub fn write(root: &Path, envs: &BTreeMap<String, String>) -> std::io::Result<()> {
    let path = root.join(FILE);
    if envs.is_empty() {
        return match fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    }
    folders::create(path.parent().unwrap_or(root), 0o755, (0, 0))?;
    let text = serde_json::to_string(envs).map_err(std::io::Error::other)?;
    write_file(&path, &format!("{text}\n"), 0o644)
}

/// What `execve` accepts.
fn is_usable(envs: &BTreeMap<String, String>) -> bool {
    let is_name = |name: &String| !name.is_empty() && !name.contains(['=', '\0']);
    envs.iter().all(|(name, value)| is_name(name) && !value.contains('\0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_anything_else_is_ignored() {
        let root = std::env::temp_dir().join(format!("warren-image-envs-{}", std::process::id()));
        fs::create_dir_all(root.join("etc/warren")).unwrap();
        let envs = BTreeMap::from([("A".to_owned(), "1 \u{1}\"ä".to_owned()), ("PATH".to_owned(), "/opt".to_owned())]);

        write(&root, &envs).unwrap();
        assert_eq!(read(&root), envs);
        for damaged in ["", "[]", r#"{"A":1}"#, r#"{"A=B":"1"}"#, r#"{"":"1"}"#, r#"{"A":"\u0000"}"#] {
            fs::write(root.join(FILE), damaged).unwrap();
            assert!(read(&root).is_empty(), "{damaged}");
        }
        write(&root, &BTreeMap::new()).unwrap();
        assert!(!root.join(FILE).exists());
        write(&root, &BTreeMap::new()).unwrap();
        fs::remove_dir_all(&root).unwrap();
    }
}

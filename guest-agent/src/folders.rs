//! POST /folders: creates a folder and its missing parents with the given mode and owner. One that exists is left alone.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::path::{Component, Path};

use http::StatusCode;
use serde::Deserialize;

use crate::owner::{Owner, resolve};
use crate::reply::Failure;
use crate::spawn::describe;

#[derive(Deserialize)]
pub struct FolderRequest {
    path: String,
    mode: u32,
    owner: Owner,
}

/// Runs on a worker thread.
pub fn make_folder(request: &FolderRequest) -> Result<(), Failure> {
    let path = Path::new(&request.path);
    let is_plain = path.is_absolute() && !path.components().any(|part| part == Component::ParentDir);
    if !is_plain || request.path.contains('\0') {
        return Err(Failure::invalid("path: must be absolute, without .. and NUL"));
    }
    let owner = resolve(&request.owner).map_err(unknown_owner)?;
    create(path, request.mode, (owner.uid, owner.gid)).map_err(|error| {
        let message = format!("{}: {}", request.path, describe(&error));
        Failure::new(StatusCode::BAD_REQUEST, "invalid_path", message)
    })
}

pub fn unknown_owner(message: String) -> Failure {
    Failure::new(StatusCode::BAD_REQUEST, "invalid_owner", message)
}

/// The mode is set again, because the umask of the agent reduces the one that a folder is created with.
pub fn create(path: &Path, mode: u32, (uid, gid): (u32, u32)) -> std::io::Result<()> {
    for part in path.ancestors().collect::<Vec<_>>().into_iter().rev() {
        match fs::DirBuilder::new().mode(0o700).create(part) {
            Ok(()) => {
                chown(part, Some(uid), Some(gid))?;
                fs::set_permissions(part, fs::Permissions::from_mode(mode & 0o7777))?;
            }
            // Follows symbolic links, as programs that enter the folder do.
            Err(error) if error.kind() == ErrorKind::AlreadyExists && fs::metadata(part)?.is_dir() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn missing_parents_get_the_mode_and_owner_and_existing_folders_keep_theirs() {
        let root = std::env::temp_dir().join(format!("warren-folders-{}", std::process::id()));
        fs::create_dir(&root).unwrap();
        fs::set_permissions(&root, fs::Permissions::from_mode(0o711)).unwrap();
        let is_root = fs::metadata(&root).unwrap().uid() == 0;
        let owner = if is_root {
            (1234, 4321)
        } else {
            (fs::metadata(&root).unwrap().uid(), fs::metadata(&root).unwrap().gid())
        };

        create(&root.join("a/b"), 0o2755, owner).unwrap();
        create(&root.join("a"), 0o700, (0, 0)).unwrap();
        fs::write(root.join("file"), "").unwrap();

        for made in ["a", "a/b"] {
            let found = fs::metadata(root.join(made)).unwrap();
            assert_eq!((found.mode() & 0o7777, found.uid(), found.gid()), (0o2755, owner.0, owner.1));
        }
        assert_eq!(fs::metadata(&root).unwrap().mode() & 0o7777, 0o711);
        assert!(create(&root.join("file/below"), 0o755, owner).is_err());
        assert!(create(&root.join("file"), 0o755, owner).is_err());
        fs::remove_dir_all(&root).unwrap();
    }
}

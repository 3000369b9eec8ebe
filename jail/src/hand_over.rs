//! `jail hand-over UID GID FOLDER …`: gives folders and everything in them to the user of a service, who owns them from
//! then on.
//!
//! No path is followed: folders are opened one in the other, without links, so that a folder that is exchanged for a link
//! leads nowhere. A folder is handed over after what it contains, the first one last. An interrupted hand-over is
//! repeated by the next start, and one that has nothing to do changes nothing.

use std::ffi::CStr;
use std::io::{Error, Result};
use std::process::ExitCode;

use crate::sys::{Failure, Step, c_string, check, number};

const USAGE: &str = "usage: jail hand-over UID GID FOLDER …";

struct Owner {
    uid: libc::uid_t,
    gid: libc::gid_t,
}

/// Whether the service has owned the folder before, and so could have changed it.
#[derive(Clone, Copy, PartialEq)]
enum Trust {
    Full,
    None,
}

pub fn main(mut args: impl Iterator<Item = String>) -> ExitCode {
    let (Some(uid), Some(gid)) = (args.next(), args.next()) else {
        eprintln!("jail: {USAGE}");
        return ExitCode::from(2);
    };
    let owner = match (number(&uid), number(&gid)) {
        (Ok(uid), Ok(gid)) if uid != 0 && gid != 0 => Owner { uid, gid },
        _ => {
            eprintln!("jail: the ids must be numbers and not 0\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    for folder in args {
        if let Err(failure) = hand_over_folder(&owner, &folder) {
            eprintln!("jail: {failure}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// The caller names it, so links on the way to it are followed: it may be on another volume.
fn hand_over_folder(owner: &Owner, path: &str) -> std::result::Result<(), Failure> {
    let name = format!("hand {path} over to user {}", owner.uid);
    let c_path = c_string(path).step(&name)?;
    // SAFETY: a valid C string.
    let folder = unsafe { libc::open(c_path.as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC) };
    let folder = check(folder).step(&name)?;
    let is_owned = stat_at(folder, c"").step(&name)?.st_uid == owner.uid;
    hand_over_contents(owner, folder, if is_owned { Trust::None } else { Trust::Full }).step(&name)
}

/// Takes a descriptor over, and hands the folder itself over last.
fn hand_over_contents(owner: &Owner, folder: libc::c_int, trust: Trust) -> Result<()> {
    // SAFETY: the descriptor belongs to this function; the stream owns it from here on.
    let stream = unsafe { libc::fdopendir(folder) };
    if stream.is_null() {
        return Err(Error::last_os_error());
    }
    let result = hand_over_entries(owner, stream, folder, trust).and_then(|()| change_owner(owner, folder, c"", trust));
    // SAFETY: an open stream.
    unsafe { libc::closedir(stream) };
    result
}

fn hand_over_entries(owner: &Owner, stream: *mut libc::DIR, folder: libc::c_int, trust: Trust) -> Result<()> {
    loop {
        // SAFETY: an open stream; errno is of this thread, and tells an error from the end. The entry is valid until the
        // next call.
        let entry = unsafe {
            *libc::__errno_location() = 0;
            libc::readdir(stream)
        };
        if entry.is_null() {
            let error = Error::last_os_error();
            return if error.raw_os_error() == Some(0) { Ok(()) } else { Err(error) };
        }
        let name = unsafe { CStr::from_ptr((*entry).d_name.as_ptr()) };
        if name == c"." || name == c".." {
            continue;
        }
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
        // SAFETY: a valid C string and a descriptor.
        match check(unsafe { libc::openat(folder, name.as_ptr(), flags) }) {
            Ok(child) => hand_over_contents(owner, child, trust)?,
            Err(error) => match error.raw_os_error() {
                // A file, link or socket.
                Some(libc::ENOTDIR | libc::ELOOP) => change_owner(owner, folder, name, trust)?,
                Some(libc::ENOENT) => {}
                _ => return Err(error),
            },
        }
    }
}

const NOFOLLOW: libc::c_int = libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH;

/// Of an entry, or with an empty name of the folder itself.
fn change_owner(owner: &Owner, folder: libc::c_int, name: &CStr, trust: Trust) -> Result<()> {
    let found = stat_at(folder, name)?;
    if found.st_uid == owner.uid && found.st_gid == owner.gid {
        return Ok(());
    }
    let is_folder = found.st_mode & libc::S_IFMT == libc::S_IFDIR;
    // It could be a file of another owner that the service has linked.
    if trust == Trust::None && !is_folder && found.st_nlink > 1 {
        return Err(Error::other(format!("{} has a second name elsewhere", name.to_string_lossy())));
    }
    // SAFETY: a valid C string and a descriptor.
    check(unsafe { libc::fchownat(folder, name.as_ptr(), owner.uid, owner.gid, NOFOLLOW) })?;
    Ok(())
}

fn stat_at(folder: libc::c_int, name: &CStr) -> Result<libc::stat> {
    // SAFETY: zeroes are a valid stat; a valid C string, a descriptor and a pointer to a local value.
    unsafe {
        let mut found: libc::stat = std::mem::zeroed();
        check(libc::fstatat(folder, name.as_ptr(), &mut found, NOFOLLOW))?;
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, chown, symlink};
    use std::path::PathBuf;

    const OWNER: Owner = Owner { uid: 1_879_048_200, gid: 1_879_048_201 };

    fn make_folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("warren-hand-over-{name}-{}", std::process::id()));
        fs::create_dir_all(folder.join("given/deep")).unwrap();
        folder
    }

    fn owner_of(path: PathBuf) -> (u32, u32) {
        let found = fs::symlink_metadata(path).unwrap();
        (found.uid(), found.gid())
    }

    fn hand_over(folder: PathBuf) -> std::result::Result<(), String> {
        hand_over_folder(&OWNER, folder.to_str().unwrap()).map_err(|failure| failure.to_string())
    }

    #[test]
    fn a_folder_with_everything_in_it_gets_its_owner_and_links_lead_nowhere() {
        let folder = make_folder("all");
        fs::write(folder.join("outside"), "").unwrap();
        fs::write(folder.join("given/deep/file"), "").unwrap();
        symlink("../outside", folder.join("given/link")).unwrap();
        symlink("..", folder.join("given/folder-link")).unwrap();

        hand_over(folder.join("given")).unwrap();
        hand_over(folder.join("given")).unwrap();

        for name in ["given", "given/deep", "given/deep/file", "given/link", "given/folder-link"] {
            assert_eq!(owner_of(folder.join(name)), (OWNER.uid, OWNER.gid), "{name}");
        }
        assert_eq!(owner_of(folder.join("outside")).0, 0);
        assert_eq!(owner_of(folder.clone()).0, 0);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn an_interrupted_hand_over_is_completed() {
        let folder = make_folder("again");
        fs::write(folder.join("given/deep/file"), "").unwrap();
        chown(folder.join("given/deep"), Some(OWNER.uid), Some(OWNER.gid)).unwrap();

        hand_over(folder.join("given")).unwrap();

        assert_eq!(owner_of(folder.join("given/deep/file")), (OWNER.uid, OWNER.gid));
        assert_eq!(owner_of(folder.join("given")), (OWNER.uid, OWNER.gid));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_of_another_owner_that_was_linked_into_the_folder_is_refused() {
        let folder = make_folder("linked");
        fs::write(folder.join("outside"), "").unwrap();
        hand_over(folder.join("given")).unwrap();
        fs::hard_link(folder.join("outside"), folder.join("given/linked")).unwrap();

        let error = hand_over(folder.join("given")).unwrap_err();

        assert!(error.ends_with("linked has a second name elsewhere"), "{error}");
        assert_eq!(owner_of(folder.join("outside")).0, 0);
        fs::remove_dir_all(folder).unwrap();
    }
}

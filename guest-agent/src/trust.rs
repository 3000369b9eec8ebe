//! Adds the certificate authorities of the operator to the trust store of the guest, for networks that intercept TLS.
//!
//! Each certificate becomes a file where `update-ca-certificates` of Debian and Alpine looks for local ones, so that it
//! stays when that program builds the bundle again. It is also added to the present bundle, because an image may not
//! have the program, and under emulation it takes seconds. Red Hat's bundle is extended in the same way. Programs that
//! bring a private list, such as Node and pip, find the certificates by environment variables, which the host sets
//! (`default_envs`).

use std::fs;
use std::io::Result;
use std::path::{Path, PathBuf};

use crate::marked_block::{lines_outside, read_file, render, write_file};

const LOCAL_CERTIFICATES: &str = "usr/local/share/ca-certificates";
const FILE_PREFIX: &str = "warren-";
/// Only the operator's certificates, for Node, which adds them to its own.
const OPERATOR_BUNDLE: &str = "etc/ssl/certs/warren.pem";
const DEBIAN_BUNDLE: &str = "etc/ssl/certs/ca-certificates.crt";
const RED_HAT_BUNDLE: &str = "etc/pki/tls/certs/ca-bundle.crt";

/// Replaces the certificates of an earlier call. Each is one certificate in PEM. Returns their number.
pub fn install(root: &Path, certificates: &[String]) -> Result<usize> {
    let certificates: Vec<String> = certificates.iter().map(|pem| format!("{}\n", pem.trim())).collect();
    if installed(root) == certificates {
        return Ok(certificates.len());
    }
    // Red Hat's first: if the image has no bundle at Debian's path, it starts as a copy of it.
    if root.join(RED_HAT_BUNDLE).exists() {
        add_to_bundle(root, RED_HAT_BUNDLE, RED_HAT_BUNDLE, &certificates)?;
    }
    let has_debian_bundle = root.join(DEBIAN_BUNDLE).exists();
    add_to_bundle(root, if has_debian_bundle { DEBIAN_BUNDLE } else { RED_HAT_BUNDLE }, DEBIAN_BUNDLE, &certificates)?;
    write_file(&root.join(OPERATOR_BUNDLE), &certificates.concat(), 0o644)?;
    // Last, because `installed` looks here: an attempt that failed halfway is repeated.
    write_local_files(root, &certificates)?;
    Ok(installed(root).len())
}

fn installed(root: &Path) -> Vec<String> {
    let files = (1..).map(|number| local_file(root, number));
    files.map_while(|file| fs::read_to_string(file).ok()).collect()
}

fn local_file(root: &Path, number: usize) -> PathBuf {
    root.join(LOCAL_CERTIFICATES).join(format!("{FILE_PREFIX}{number}.crt"))
}

fn write_local_files(root: &Path, certificates: &[String]) -> Result<()> {
    fs::create_dir_all(root.join(LOCAL_CERTIFICATES))?;
    for number in certificates.len() + 1..=installed(root).len() {
        fs::remove_file(local_file(root, number))?;
    }
    for (index, pem) in certificates.iter().enumerate() {
        write_file(&local_file(root, index + 1), pem, 0o644)?;
    }
    Ok(())
}

fn add_to_bundle(root: &Path, from: &str, to: &str, certificates: &[String]) -> Result<()> {
    let text = read_file(&root.join(from))?;
    let outside = lines_outside(&text).join("\n");
    let lines = certificates.iter().filter(|pem| !outside.contains(pem.trim())).map(|pem| pem.trim().to_owned());
    let path = root.join(to);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    write_file(&path, &render(&text, &lines.collect::<Vec<_>>()), 0o644)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBLIC: &str = "-----BEGIN CERTIFICATE-----\npublic\n-----END CERTIFICATE-----";
    const COMPANY: &str = "-----BEGIN CERTIFICATE-----\ncompany\n-----END CERTIFICATE-----";
    const OTHER: &str = "-----BEGIN CERTIFICATE-----\nother\n-----END CERTIFICATE-----";

    fn image(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("warren-trust-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        for (file, text) in files {
            fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
            fs::write(root.join(file), text).unwrap();
        }
        root
    }

    fn count(root: &Path, file: &str, pem: &str) -> usize {
        fs::read_to_string(root.join(file)).unwrap().matches(pem).count()
    }

    #[test]
    fn a_certificate_is_added_to_the_bundle_and_kept_for_its_next_build() {
        let root = image("debian", &[(DEBIAN_BUNDLE, PUBLIC)]);

        assert_eq!(install(&root, &[COMPANY.into(), OTHER.into()]).unwrap(), 2);
        assert_eq!(install(&root, &[COMPANY.into(), OTHER.into()]).unwrap(), 2);

        for pem in [PUBLIC, COMPANY, OTHER] {
            assert_eq!(count(&root, DEBIAN_BUNDLE, pem), 1);
        }
        assert_eq!(fs::read_to_string(local_file(&root, 1)).unwrap(), format!("{COMPANY}\n"));
        assert_eq!(fs::read_to_string(root.join(OPERATOR_BUNDLE)).unwrap(), format!("{COMPANY}\n{OTHER}\n"));
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn fewer_certificates_replace_the_earlier_ones() {
        let root = image("fewer", &[(DEBIAN_BUNDLE, PUBLIC)]);
        install(&root, &[COMPANY.into(), OTHER.into()]).unwrap();

        assert_eq!(install(&root, &[OTHER.into()]).unwrap(), 1);

        assert_eq!([PUBLIC, COMPANY, OTHER].map(|pem| count(&root, DEBIAN_BUNDLE, pem)), [1, 0, 1]);
        assert_eq!(installed(&root), [format!("{OTHER}\n")]);
        assert_eq!(install(&root, &[]).unwrap(), 0);
        assert_eq!([PUBLIC, OTHER].map(|pem| count(&root, DEBIAN_BUNDLE, pem)), [1, 0]);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_bundle_that_has_the_certificate_already_is_not_extended() {
        let root = image("twice", &[(DEBIAN_BUNDLE, &format!("{PUBLIC}\n{COMPANY}\n"))]);

        assert_eq!(install(&root, &[COMPANY.into()]).unwrap(), 1);

        assert_eq!(count(&root, DEBIAN_BUNDLE, COMPANY), 1);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn an_image_without_a_bundle_gets_one_and_red_hats_is_extended() {
        let bare = image("bare", &[("etc/hostname", "")]);
        let red_hat = image("red-hat", &[(RED_HAT_BUNDLE, PUBLIC)]);

        for root in [&bare, &red_hat] {
            assert_eq!(install(root, &[COMPANY.into()]).unwrap(), 1);
            assert_eq!(count(root, DEBIAN_BUNDLE, COMPANY), 1);
        }

        assert_eq!([PUBLIC, COMPANY].map(|pem| count(&red_hat, RED_HAT_BUNDLE, pem)), [1, 1]);
        assert_eq!(count(&red_hat, DEBIAN_BUNDLE, PUBLIC), 1);
        for root in [bare, red_hat] {
            fs::remove_dir_all(root).unwrap();
        }
    }

    #[test]
    fn an_image_without_certificates_is_left_alone_when_there_are_none_to_add() {
        let root = image("none", &[("etc/hostname", "")]);

        assert_eq!(install(&root, &[]).unwrap(), 0);

        assert!(!root.join(DEBIAN_BUNDLE).exists() && !root.join(LOCAL_CERTIFICATES).exists());
        fs::remove_dir_all(root).unwrap();
    }
}

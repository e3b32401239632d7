#![forbid(unsafe_code)]
//! The directory: its layout version, the map of this boot, and the sweep of older ones.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::Error;

/// The one line of the layout file. Changes whenever files or records are laid out differently.
const LAYOUT: &str = "homing lmdb 1";
const LAYOUT_FILE: &str = "homing-store.layout";
const BOOT_PREFIX: &str = "homing-store-";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// How long an open waits for its turn to write.
pub(super) const OPEN_PATIENCE: Duration = Duration::from_secs(5);

/// A prepared directory.
#[derive(Debug)]
pub(super) struct Place {
    /// As the user gave it.
    pub(super) dir: PathBuf,
    /// Where the map of this boot lives.
    pub(super) boot_dir: PathBuf,
    /// Device and inode of `boot_dir`.
    pub(super) identity: (u64, u64),
}

impl Place {
    pub(super) fn prepare(dir: &Path) -> Result<Self, Error> {
        if dir.as_os_str().is_empty() {
            // Joined to a name it would be the working directory: a variable that was not set.
            return Err(Error::not_configured(
                "store directory \"\" is empty; name a directory, \".\" for the working one",
            ));
        }
        let boot_id = fs::read_to_string(BOOT_ID).map_err(|e| {
            Error::not_configured(format!("the boot id cannot be read from {BOOT_ID}: {e}"))
        })?;
        Self::prepare_for(dir, boot_id.trim())
    }

    fn prepare_for(dir: &Path, boot_id: &str) -> Result<Self, Error> {
        let unusable = |e: io::Error| {
            Error::not_configured(format!(
                "store directory {dir:?} cannot be used: {e}; it must be a directory on a local \
                 file system in which this process can create files"
            ))
        };
        fs::create_dir_all(dir).map_err(unusable)?;
        refuse_network(dir)?;
        check_layout(dir, unusable)?;
        let boot_dir = dir.join(format!("{BOOT_PREFIX}{boot_id}"));
        fs::create_dir_all(&boot_dir).map_err(unusable)?;
        sweep(dir, &boot_dir);
        let meta = fs::metadata(&boot_dir).map_err(unusable)?;
        Ok(Self { dir: dir.to_owned(), boot_dir, identity: (meta.dev(), meta.ino()) })
    }
}

fn check_layout(dir: &Path, unusable: impl Fn(io::Error) -> Error) -> Result<(), Error> {
    let file = dir.join(LAYOUT_FILE);
    match fs::read(&file) {
        Ok(found) if found.trim_ascii() == LAYOUT.as_bytes() => Ok(()),
        Ok(found) => Err(Error::not_configured(format!(
            "store directory {dir:?} has the layout \"{}\" and this version reads \"{LAYOUT}\"; \
             use another directory, or remove this one when no node uses it",
            found.trim_ascii()[..found.trim_ascii().len().min(64)].escape_ascii()
        ))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            // Whole or not at all: a process that dies here leaves no half line. Several that do
            // this at the same time write the same.
            static OPENS: AtomicU64 = AtomicU64::new(0);
            let unique = OPENS.fetch_add(1, Ordering::Relaxed);
            let own = dir.join(format!("{LAYOUT_FILE}.{}-{unique}", std::process::id()));
            fs::write(&own, format!("{LAYOUT}\n")).map_err(&unusable)?;
            fs::rename(&own, &file).map_err(unusable)
        }
        Err(e) => Err(unusable(e)),
    }
}

/// Removes the maps of other boots: every node that used them is gone. What cannot be removed is
/// reported and left.
fn sweep(dir: &Path, keep: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
        let of_a_boot = name.strip_prefix(BOOT_PREFIX).is_some_and(is_boot_id);
        if of_a_boot
            && path != keep
            && let Err(e) = fs::remove_dir_all(&path)
            && e.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!("the store of an earlier boot in {path:?} stays: {e}");
        }
    }
}

/// Whether a name has the form of a boot id, 8-4-4-4-12 hex digits.
fn is_boot_id(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    lengths == [8, 4, 4, 4, 12]
        && parts.iter().all(|part| part.bytes().all(|b| b.is_ascii_hexdigit()))
}

fn refuse_network(dir: &Path) -> Result<(), Error> {
    let magic = rustix::fs::statfs(dir).map(|stat| stat.f_type as u32).unwrap_or(0);
    match network_file_system(magic) {
        None => Ok(()),
        Some(name) => Err(Error::not_configured(format!(
            "store directory {dir:?} is on a network file system ({name}); the store is shared by \
             the processes of one host and needs a local file system"
        ))),
    }
}

/// The file systems whose locks and maps do not reach across hosts (magic numbers of statfs).
const fn network_file_system(magic: u32) -> Option<&'static str> {
    match magic {
        0x6969 => Some("NFS"),
        0x517B | 0xFF53_4D42 | 0xFE53_4D42 => Some("SMB"),
        0x00C3_6400 => Some("Ceph"),
        0x5346_414F => Some("AFS"),
        0x0BD0_0BD0 => Some("Lustre"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THIS: &str = "0f0e0d0c-0b0a-0908-0706-050403020100";
    const LAST: &str = "1f0e0d0c-0b0a-0908-0706-050403020100";

    #[test]
    fn a_new_boot_starts_empty_and_sweeps_the_old_one_alone() {
        let dir = tempfile::tempdir().unwrap();
        let old = Place::prepare_for(dir.path(), LAST).unwrap();
        fs::write(old.boot_dir.join("data.mdb"), b"old").unwrap();
        for kept in ["homing-store-notes", "other", "homing-store-1f0e0d0c"] {
            fs::create_dir(dir.path().join(kept)).unwrap();
        }
        let new = Place::prepare_for(dir.path(), THIS).unwrap();
        assert!(!old.boot_dir.exists());
        assert_eq!(fs::read_dir(&new.boot_dir).unwrap().count(), 0);
        for kept in ["homing-store-notes", "other", "homing-store-1f0e0d0c"] {
            assert!(dir.path().join(kept).exists(), "{kept} is not a boot's and stays");
        }
    }

    #[test]
    fn the_same_boot_finds_the_same_place() {
        let dir = tempfile::tempdir().unwrap();
        let one = Place::prepare_for(dir.path(), THIS).unwrap();
        let other = Place::prepare_for(&dir.path().join("."), THIS).unwrap();
        assert_eq!(one.identity, other.identity);
    }

    #[test]
    fn another_layout_is_refused_and_nothing_is_created_or_swept() {
        let dir = tempfile::tempdir().unwrap();
        let old = Place::prepare_for(dir.path(), LAST).unwrap();
        fs::write(dir.path().join(LAYOUT_FILE), "homing lmdb 999\n").unwrap();
        let e = Place::prepare_for(dir.path(), THIS).unwrap_err();
        assert!(e.text().contains("\"homing lmdb 999\""), "{e}");
        assert!(e.text().contains("\"homing lmdb 1\""), "{e}");
        assert!(old.boot_dir.exists());
        assert!(!dir.path().join(format!("{BOOT_PREFIX}{THIS}")).exists());
    }

    #[test]
    fn network_file_systems_are_known_by_their_magic() {
        assert_eq!(network_file_system(0x6969), Some("NFS"));
        assert_eq!(network_file_system(0xFF53_4D42), Some("SMB"));
        assert_eq!(network_file_system(0x0102_1994), None, "tmpfs");
        assert_eq!(network_file_system(0xEF53), None, "ext4");
    }
}

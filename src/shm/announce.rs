#![forbid(unsafe_code)]
//! How others find a node's region: one small file per node in a runtime directory.
//!
//! ```text
//! <dir>/<name>.lock        locked while the node lives; the kernel unlocks it when it dies
//! <dir>/<name>.node        the announcement: pid, start time, boot id, descriptor
//! <dir>/<name>.node.new    an announcement being written
//! <dir>/<name>.region      the region itself, in file form only (.region.new while it is made)
//! ```
//!
//! The name is the rid as far as it can be part of a file name. Whoever holds the lock may replace
//! everything else under the name: the one before is gone. A reader trusts none of it: it compares
//! pid, start time and boot id with the process that is there, and with the region's header.

use std::fs;
use std::io;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::process::{ProcessIdentity, hex, parse_hex};
use super::region::{CreateError, CreateStep, Region, temporary_name};
use super::view::AttachError;
use crate::ids::NodeRid;

/// The format of announcements that this program writes and reads.
const FORMAT: u32 = 1;
/// No announcement is longer.
const MAX_ANNOUNCEMENT_BYTES: u64 = 4096;
/// Longest name before its ending: a file name has 255 bytes.
const MAX_NAME_BYTES: usize = 200;

/// Where a node's region is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The process.
    pub process: ProcessIdentity,
    /// The region's descriptor in that process.
    pub fd: u32,
    /// Bytes of the region.
    pub region_bytes: u64,
    /// The node, as its rid is shown.
    pub rid: String,
}

/// The file's text.
#[derive(Serialize, Deserialize)]
struct Written {
    format: u32,
    pid: u32,
    start_time_ticks: u64,
    boot_id: String,
    fd: u32,
    region_bytes: u64,
    rid: String,
}

impl Announcement {
    /// Reads an announcement.
    ///
    /// # Errors
    /// When it cannot be read or makes no sense.
    pub fn read(path: &Path) -> Result<Self, AttachError> {
        let shown = path.display();
        let file =
            fs::File::open(path).map_err(|e| AttachError::system(format!("opening {shown}"), e))?;
        let mut bytes = Vec::new();
        file.take(MAX_ANNOUNCEMENT_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(|e| AttachError::system(format!("reading {shown}"), e))?;
        Self::parse(&bytes)
            .map_err(|text| AttachError::Announcement { path: shown.to_string(), text })
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() as u64 > MAX_ANNOUNCEMENT_BYTES {
            return Err(format!("it is longer than {MAX_ANNOUNCEMENT_BYTES} bytes"));
        }
        let written: Written = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        if written.format != FORMAT {
            let found = written.format;
            return Err(format!("it has format {found} and this program reads format {FORMAT}"));
        }
        let boot_id = parse_hex(&written.boot_id)
            .ok_or_else(|| format!("boot_id {:?} is not 32 hex digits", written.boot_id))?;
        let process = ProcessIdentity {
            pid: written.pid,
            start_time_ticks: written.start_time_ticks,
            boot_id,
        };
        let Written { fd, region_bytes, rid, .. } = written;
        Ok(Self { process, fd, region_bytes, rid })
    }

    fn to_json(&self) -> Vec<u8> {
        let written = Written {
            format: FORMAT,
            pid: self.process.pid,
            start_time_ticks: self.process.start_time_ticks,
            boot_id: hex(self.process.boot_id),
            fd: self.fd,
            region_bytes: self.region_bytes,
            rid: self.rid.clone(),
        };
        // A struct of numbers and strings always has a JSON form.
        serde_json::to_vec(&written).unwrap_or_default()
    }
}

/// Why a name could not be claimed. Each is one sentence.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// Another process holds it.
    #[error(
        "a node named {rid} runs already{} (its lock is {lock}): stop it, or give this node \
         another rid", pid.map(|p| format!(" in process {p}")).unwrap_or_default()
    )]
    Held {
        /// The node.
        rid: String,
        /// The lock.
        lock: String,
        /// Who holds it, as its announcement says.
        pid: Option<u32>,
    },
    /// The kernel refused something.
    #[error("{what} failed: {source}")]
    System {
        /// What was tried.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
}

impl From<ClaimError> for crate::Error {
    fn from(e: ClaimError) -> Self {
        Self::not_configured(e.to_string())
    }
}

/// The right to a node's name in a runtime directory, held by a lock that ends with the process
/// (and with every process forked from it that did not exec).
///
/// Dropping it takes the announcement away; the lock file stays, because removing it would let two
/// processes hold two locks of one name.
#[derive(Debug)]
pub struct Claim {
    dir: PathBuf,
    name: String,
    rid: String,
    announced: bool,
    _lock: OwnedFd,
}

impl Claim {
    /// Claims the name of `rid`. Makes the directory, mode 0700, when it is not there.
    ///
    /// # Errors
    /// As [`ClaimError`].
    pub fn take(
        dir: &Path,
        rid: &NodeRid,
        on_step: &mut dyn FnMut(CreateStep),
    ) -> Result<Self, ClaimError> {
        let system = |what: String, source: io::Error| ClaimError::System { what, source };
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(|e| system(format!("making the directory {}", dir.display()), e))?;
        let name = file_name(rid);
        let path = dir.join(format!("{name}.lock"));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|e| system(format!("opening {}", path.display()), e.into()))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let holder = Announcement::read(&dir.join(format!("{name}.node"))).ok();
                return Err(ClaimError::Held {
                    rid: rid.to_string(),
                    lock: path.display().to_string(),
                    pid: holder.map(|a| a.process.pid),
                });
            }
            Err(e) => return Err(system(format!("locking {}", path.display()), e.into())),
        }
        let claim =
            Self { dir: dir.to_owned(), name, rid: rid.to_string(), announced: false, _lock: lock };
        on_step(CreateStep::Claimed);
        Ok(claim)
    }

    /// Where the announcement is.
    #[must_use]
    pub fn announcement_path(&self) -> PathBuf {
        self.dir.join(format!("{}.node", self.name))
    }

    /// Where the region is in file form.
    #[must_use]
    pub fn region_path(&self) -> PathBuf {
        self.dir.join(format!("{}.region", self.name))
    }

    /// Tells others where the region is, in place of what was told before.
    ///
    /// # Errors
    /// When the file cannot be written, or the region is private.
    pub fn announce(
        &mut self,
        region: &Region,
        process: ProcessIdentity,
        on_step: &mut dyn FnMut(CreateStep),
    ) -> Result<(), CreateError> {
        let Some(file) = region.file() else {
            return Err(CreateError::Spec("a private region cannot be announced".to_owned()));
        };
        let announcement = Announcement {
            process,
            fd: file.as_raw_fd() as u32,
            region_bytes: region.map().region_bytes(),
            rid: self.rid.clone(),
        };
        let path = self.announcement_path();
        let temporary = temporary_name(&path);
        let failed = |e| CreateError::system(format!("writing {}", temporary.display()), e);
        // One that a dead node left is written over: the lock is ours.
        let mut out = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)
            .map_err(failed)?;
        out.write_all(&announcement.to_json()).map_err(failed)?;
        on_step(CreateStep::Written);
        fs::rename(&temporary, &path)
            .map_err(|e| CreateError::system(format!("naming {}", path.display()), e))?;
        self.announced = true;
        on_step(CreateStep::Announced);
        Ok(())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.announced {
            // Somebody may have removed it already; a reader then finds a dead process.
            let _ = fs::remove_file(self.announcement_path());
        }
    }
}

/// The rid as part of a file name: letters, digits, `-`, `_` and dots inside stay, other bytes
/// become `%XX`; one that gets too long is cut off and made unique by its hash.
fn file_name(rid: &NodeRid) -> String {
    let mut name = String::new();
    for (at, byte) in rid.as_bytes().iter().enumerate() {
        let plain = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if plain || (*byte == b'.' && at > 0) {
            name.push(char::from(*byte));
        } else {
            name.push_str(&format!("%{byte:02X}"));
        }
    }
    if name.len() > MAX_NAME_BYTES {
        let hash = xxhash_rust::xxh3::xxh3_128(rid.as_bytes());
        name.truncate(MAX_NAME_BYTES - 33);
        name.push_str(&format!("%{hash:032x}"));
    }
    name
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_rid_has_a_file_name_of_its_own() {
        let mut long = [b'x'; 255];
        long[254] = b'y';
        let rids: [&[u8]; 9] = [
            b"node-a",
            b"..",
            b"a/b",
            b"a%2Fb",
            b"\0",
            &[0xff; 255],
            &[b'x'; 255],
            &long,
            "knoten-ä".as_bytes(),
        ];
        let names: Vec<String> =
            rids.iter().map(|rid| file_name(&NodeRid::new(rid).unwrap())).collect();
        assert_eq!(names[0], "node-a");
        assert_eq!(names[1], "%2E.");
        assert!(names.iter().all(|n| n.len() <= MAX_NAME_BYTES && !n.contains('/')), "{names:?}");
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), rids.len());
    }

    #[test]
    fn an_announcement_is_read_as_it_was_written_and_nothing_else_is() {
        let announcement = Announcement {
            process: ProcessIdentity { pid: 7, start_time_ticks: 9, boot_id: [3; 16] },
            fd: 5,
            region_bytes: 4096,
            rid: "a".to_owned(),
        };
        let json = announcement.to_json();
        assert_eq!(Announcement::parse(&json), Ok(announcement));
        let text = String::from_utf8(json).unwrap();
        for (from, to, why) in [
            ("\"format\":1", "\"format\":2", "it has format 2"),
            ("\"pid\":7", "\"pid\":-7", "invalid value"),
            ("0303", "03", "is not 32 hex digits"),
            ("{", "[", "invalid type"),
            ("}", "", "EOF"),
        ] {
            let error = Announcement::parse(text.replacen(from, to, 1).as_bytes()).unwrap_err();
            assert!(error.contains(why), "{from}: {error}");
        }
        assert!(Announcement::parse(&[b' '; 5000]).unwrap_err().contains("longer"));
        for cut in 0..text.len() {
            assert!(Announcement::parse(&text.as_bytes()[..cut]).is_err());
        }
    }
}

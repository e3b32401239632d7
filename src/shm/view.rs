#![forbid(unsafe_code)]
//! Reading a region: another process's, or one's own from another thread.

use std::fs;
use std::io;
use std::io::Read as _;
use std::mem::offset_of;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use rustix::fs::{FileType, Mode, OFlags, SealFlags};

use super::announce::Announcement;
use super::counters::CounterReading;
use super::process::ProcessIdentity;
use super::{Memory, ReadWords, WriteWords};
use crate::ids::{MeshName, NodeRid};
use crate::layout::{
    CounterLabel, HEADER_BYTES, Refusal, RegionHeader, RegionMap, SectionKind, WORD_BYTES,
    check_header, get_text,
};

const VERSION_AT: usize = offset_of!(RegionHeader, version) / WORD_BYTES;

/// Why a region is not read. Each is one sentence.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// Its bytes do not pass.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// It could be cut off while it is read.
    #[error(
        "the region is not sealed, so a reader could die of a SIGBUS: read the file of a dead node \
         by its path instead"
    )]
    NotSealed,
    /// Its process has ended, or another one has its pid.
    #[error("the node of process {0} has ended")]
    Ended(u32),
    /// Its process lives, so that a copy of the file could be torn.
    #[error("process {0} still writes this region: attach through its announcement")]
    StillWritten(u32),
    /// What the announcement leads to belongs to another process.
    #[error("the announcement of process {pid} leads to a region of process {found}")]
    OtherProcess {
        /// Who announced.
        pid: u32,
        /// Whose region it is.
        found: u64,
    },
    /// The announcement cannot be read.
    #[error("the announcement {path} is damaged: {text}")]
    Announcement {
        /// Which file.
        path: String,
        /// What is wrong.
        text: String,
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

impl AttachError {
    pub(super) fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::System { what: what.into(), source: source.into() }
    }
}

/// The words of one core, for reading.
#[derive(Clone, Debug)]
pub struct ShardView {
    /// `ShardHead`
    pub head: ReadWords,
    /// `HotRoute`s
    pub route_hot: ReadWords,
    /// `ColdRoute`s
    pub route_cold: ReadWords,
    /// `IdBlock`s
    pub id_arena: ReadWords,
    /// `HotNode`s
    pub node_hot: ReadWords,
    /// `ColdNode`s
    pub node_cold: ReadWords,
}

/// A region to read. Cheap to clone. Every range it hands out was checked.
#[derive(Clone, Debug)]
pub struct RegionView {
    memory: Arc<Memory>,
    header: Arc<RegionHeader>,
    map: Arc<RegionMap>,
}

impl RegionView {
    pub(super) fn of_own(memory: Arc<Memory>, header: RegionHeader, map: RegionMap) -> Self {
        Self { memory, header: Arc::new(header), map: Arc::new(map) }
    }

    /// Maps the region that an announcement leads to, through the process's own fd directory, so
    /// that a stopped node can be read too.
    ///
    /// # Errors
    /// As [`AttachError`].
    pub fn of_node(announcement: &Announcement) -> Result<Self, AttachError> {
        let process = announcement.process;
        if !process.is_alive() {
            return Err(AttachError::Ended(process.pid));
        }
        let path = format!("/proc/{}/fd/{}", process.pid, announcement.fd);
        let file = rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| AttachError::system(format!("opening {path}"), e))?;
        let view = Self::attach(file)?;
        if view.process() != Some(process) {
            let found = view.header.pid;
            return Err(AttachError::OtherProcess { pid: process.pid, found });
        }
        Ok(view)
    }

    /// Maps a region read-only, by a descriptor of its memfd.
    ///
    /// # Errors
    /// As [`AttachError`]; nothing but the header was read then.
    pub fn attach(file: OwnedFd) -> Result<Self, AttachError> {
        // What is no memfd answers EINVAL, or has no seal.
        let seals = rustix::fs::fcntl_get_seals(&file).unwrap_or(SealFlags::empty());
        if !seals.contains(SealFlags::SHRINK) {
            return Err(AttachError::NotSealed);
        }
        Self::map_unsealed(&file)
    }

    /// Maps a file of which the caller knows that nobody cuts it off.
    pub(super) fn map_unsealed(file: impl AsFd) -> Result<Self, AttachError> {
        let bytes = length(&file)?;
        let memory = Memory::read_only(&file, bytes)
            .map_err(|e| AttachError::system(format!("mapping the region of {bytes} bytes"), e))?;
        Self::check(Arc::new(memory), bytes)
    }

    /// Reads a region in file form into memory, for a look at a node that has died.
    ///
    /// # Errors
    /// As [`AttachError`]; `StillWritten` when its process lives, because a copy of what changes
    /// is not whole.
    pub fn load(path: &Path) -> Result<Self, AttachError> {
        let shown = path.display();
        let mut file =
            fs::File::open(path).map_err(|e| AttachError::system(format!("opening {shown}"), e))?;
        let bytes = length(&file)?;
        let failed = |e| AttachError::system(format!("reading {shown}"), e);
        let memory = Arc::new(Memory::anonymous(bytes).map_err(failed)?);
        let mut words = WriteWords::new(&memory, 0..memory.word_count());
        let mut page = vec![0; HEADER_BYTES as usize];
        let mut at = 0;
        while at < words.len() {
            let len = (words.len() - at).min(page.len() / WORD_BYTES) * WORD_BYTES;
            file.read_exact(&mut page[..len]).map_err(failed)?;
            for word in page[..len].chunks_exact(WORD_BYTES) {
                words.store(at, word.try_into().map_or(0, u64::from_ne_bytes));
                at += 1;
            }
            if at * WORD_BYTES == HEADER_BYTES as usize {
                // A file that is no region is not read to its end.
                Self::check(memory.clone(), bytes)?;
            }
        }
        let view = Self::check(memory, bytes)?;
        match view.process() {
            Some(process) if process.is_alive() => Err(AttachError::StillWritten(process.pid)),
            _ => Ok(view),
        }
    }

    /// Looks at the header alone.
    fn check(memory: Arc<Memory>, bytes: u64) -> Result<Self, AttachError> {
        let words = ReadWords::new(&memory, 0..memory.word_count());
        let version = words.load(VERSION_AT);
        // SYNC: pairs with `WriteWords::publish`: with the version, all before it is seen.
        fence(Ordering::Acquire);
        let header: [u64; RegionHeader::WORDS] = words.copy(0);
        let header = RegionHeader { version, ..zerocopy::transmute!(header) };
        let map = check_header(&header, bytes)?;
        Ok(Self { memory, header: Arc::new(header), map: Arc::new(map) })
    }

    /// The header, which has passed.
    #[must_use]
    pub fn header(&self) -> &RegionHeader {
        &self.header
    }

    /// Where everything lies.
    #[must_use]
    pub fn map(&self) -> &RegionMap {
        &self.map
    }

    /// The node's rid; `None` when it has none.
    #[must_use]
    pub fn rid(&self) -> Option<NodeRid> {
        NodeRid::new(get_text(&self.header.rid)?).ok()
    }

    /// The node's mesh; `None` when it has none.
    #[must_use]
    pub fn mesh(&self) -> Option<MeshName> {
        MeshName::new(std::str::from_utf8(get_text(&self.header.mesh)?).ok()?).ok()
    }

    /// The process that made it; `None` when the number is none of a process.
    #[must_use]
    pub fn process(&self) -> Option<ProcessIdentity> {
        Some(ProcessIdentity {
            pid: u32::try_from(self.header.pid).ok()?,
            start_time_ticks: self.header.start_time_ticks,
            boot_id: self.header.boot_id,
        })
    }

    /// A core's shard; `None` for a core there is not.
    #[must_use]
    pub fn shard(&self, core: u16) -> Option<ShardView> {
        Some(ShardView {
            head: self.words(SectionKind::ShardHeads, core)?,
            route_hot: self.words(SectionKind::RouteHot, core)?,
            route_cold: self.words(SectionKind::RouteCold, core)?,
            id_arena: self.words(SectionKind::IdArena, core)?,
            node_hot: self.words(SectionKind::NodeHot, core)?,
            node_cold: self.words(SectionKind::NodeCold, core)?,
        })
    }

    /// The values of a core's counters, in the order of the labels; `None` for a core there is not.
    #[must_use]
    pub fn counter_values(&self, core: u16) -> Option<ReadWords> {
        self.words(SectionKind::CounterValues, core)
    }

    /// All counters, with one value per core.
    #[must_use]
    pub fn counters(&self) -> Vec<CounterReading> {
        let Some(labels) = self.words(SectionKind::CounterLabels, 0) else { return Vec::new() };
        let cores = 0..self.map.core_count();
        let values: Vec<ReadWords> = cores.filter_map(|core| self.counter_values(core)).collect();
        let text = |field: Option<&[u8]>| String::from_utf8_lossy(field.unwrap_or(b"?")).into();
        (0..self.map.items(SectionKind::CounterLabels))
            .map(|index| {
                let words: [u64; CounterLabel::WORDS] = labels.copy(index * CounterLabel::WORDS);
                let label: CounterLabel = zerocopy::transmute!(words);
                CounterReading {
                    id: label.id,
                    label: text(get_text(&label.label)),
                    unit: text(get_text(&label.unit)),
                    per_core: values.iter().map(|core| core.load(index)).collect(),
                }
            })
            .collect()
    }

    fn words(&self, kind: SectionKind, core: u16) -> Option<ReadWords> {
        Some(ReadWords::new(&self.memory, self.map.shard_words(kind, core)?))
    }
}

/// The length of a file that can be a region.
fn length(file: impl AsFd) -> Result<u64, AttachError> {
    let stat = rustix::fs::fstat(file)
        .map_err(|e| AttachError::system("asking for the region's length", e))?;
    let bytes = u64::try_from(stat.st_size).unwrap_or(0);
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if !is_file || bytes < HEADER_BYTES || bytes % WORD_BYTES as u64 != 0 {
        return Err(Refusal::NotARegion.into());
    }
    Ok(bytes)
}

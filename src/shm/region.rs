#![forbid(unsafe_code)]
//! Making a region. Everything that can fail fails here, at the start, with a sentence.
//!
//! The order of steps is [`CreateStep`]. The version word comes last: whoever finds a region
//! before that, or one whose maker died before that, sees version 0 and refuses it.

use std::fs;
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;

use super::counters::{CounterBlock, CounterSpec};
use super::process::ProcessIdentity;
use super::view::{AttachError, RegionView};
use super::{Memory, WriteWords};
use crate::ids::{MeshName, NodeRid};
use crate::layout::{
    CounterLabel, HEADER_BYTES, LAYOUT_HASH, LAYOUT_VERSION, MAGIC, RegionHeader, RegionMap,
    RegionSizes, SectionKind, WORD_BYTES, put_text,
};
use crate::limits::{NODE_TABLE_ROWS, ROUTE_CACHE_WAYS, ROUTES_PER_ID_BLOCK};
use crate::time::Nanos;

const VERSION_AT: usize = offset_of!(RegionHeader, version) / WORD_BYTES;

/// Whose region it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionIdentity {
    /// The node's mesh.
    pub mesh: MeshName,
    /// The node.
    pub rid: NodeRid,
    /// Its lifecycle; zero for a region that belongs to no node.
    pub node_generation: u64,
    /// The seed of the mesh's object hash.
    pub hash_seed: u64,
    /// Its process.
    pub process: ProcessIdentity,
    /// When the region is made.
    pub created_at: Nanos,
}

/// What a new region is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionSpec {
    /// Whose it is.
    pub identity: RegionIdentity,
    /// How large; `counter_count` is taken from `counters`.
    pub sizes: RegionSizes,
    /// The counters.
    pub counters: Vec<CounterSpec>,
}

impl RegionSizes {
    /// The sizes for a node that caches at most `routes` over all its cores: a power of two of
    /// sets per core, rounded down.
    ///
    /// ```
    /// use homing::layout::RegionSizes;
    /// assert_eq!(RegionSizes::of_node(3, 65_536).routes_per_core, 16_384);
    /// ```
    #[must_use]
    pub fn of_node(core_count: u16, routes: usize) -> Self {
        let most = (1 << 31) / ROUTE_CACHE_WAYS; // as many as a section can count
        let routes = routes.div_ceil(usize::from(core_count.max(1)));
        let sets = (routes / ROUTE_CACHE_WAYS).clamp(1, most);
        let routes_per_core = ((1 << sets.ilog2()) * ROUTE_CACHE_WAYS) as u32;
        Self {
            core_count,
            routes_per_core,
            arena_blocks_per_core: routes_per_core.div_ceil(ROUTES_PER_ID_BLOCK),
            node_rows_per_core: NODE_TABLE_ROWS,
            counter_count: 0,
        }
    }
}

/// Where the bytes of a region are.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// In this process alone; nobody else can attach.
    Private,
    /// In a sealed memfd (the default of a node).
    Memfd,
    /// In a file that stays when the process dies. The caller holds the claim under whose name
    /// the file lies, so that nobody else makes it at the same time. It cannot be sealed.
    File(&'a Path),
}

/// How far the making of a region has come. Told after each step, so that a test can end the
/// process there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CreateStep {
    /// The name is claimed.
    Claimed,
    /// The memfd or the temporary file is there, empty.
    Opened,
    /// Its space is reserved.
    Reserved,
    /// Header and labels are written; the version is still zero.
    Filled,
    /// It is sealed, or has only its temporary name.
    Sealed,
    /// The version is published.
    Published,
    /// It has its name (file form).
    Named,
    /// The announcement is written under a temporary name.
    Written,
    /// The announcement has its name.
    Announced,
}

impl CreateStep {
    /// All steps in order.
    pub const ALL: [Self; 9] = [
        Self::Claimed,
        Self::Opened,
        Self::Reserved,
        Self::Filled,
        Self::Sealed,
        Self::Published,
        Self::Named,
        Self::Written,
        Self::Announced,
    ];
}

/// Why a region could not be made. Each is one sentence.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// There is not enough space.
    #[error("no space for a region of {bytes} bytes in {place}: free some, or cache fewer routes")]
    NoSpace {
        /// What was asked for.
        bytes: u64,
        /// Where.
        place: String,
    },
    /// A setting is out of its bounds.
    #[error("the region cannot be laid out: {0}")]
    Spec(String),
    /// The kernel refused something.
    #[error("{what} failed: {source}")]
    System {
        /// What was tried.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The region that is to be taken over is not one.
    #[error("the region cannot be taken over: {0}")]
    Adopt(AttachError),
}

impl CreateError {
    pub(super) fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::System { what: what.into(), source: source.into() }
    }
}

impl From<CreateError> for crate::Error {
    fn from(e: CreateError) -> Self {
        Self::not_configured(e.to_string())
    }
}

/// The words of one core: what it alone writes.
#[derive(Debug)]
pub struct Shard {
    /// Which core.
    pub core: u16,
    /// Whether nothing was ever written here, so that every word is zero.
    pub is_fresh: bool,
    /// `ShardHead`
    pub head: WriteWords,
    /// `HotRoute`s
    pub route_hot: WriteWords,
    /// `ColdRoute`s
    pub route_cold: WriteWords,
    /// `IdBlock`s
    pub id_arena: WriteWords,
    /// `HotNode`s
    pub node_hot: WriteWords,
    /// `ColdNode`s
    pub node_cold: WriteWords,
}

/// A node's own region. Dropping it closes the descriptor; the memory goes when the last shard,
/// block and view of this process are gone too.
#[derive(Debug)]
pub struct Region {
    memory: Arc<Memory>,
    header: RegionHeader,
    map: RegionMap,
    file: Option<OwnedFd>,
    is_fresh: bool,
    shards_given: Vec<bool>,
    blocks_given: Vec<bool>,
}

impl Region {
    /// Makes a region. `on_step` is told after every step that was taken.
    ///
    /// # Errors
    /// As [`CreateError`]; nothing is left behind then.
    pub fn create(
        spec: &RegionSpec,
        place: Place<'_>,
        on_step: &mut dyn FnMut(CreateStep),
    ) -> Result<Self, CreateError> {
        let counter_count = u32::try_from(spec.counters.len())
            .map_err(|_| CreateError::Spec("more than 2^32 counters".to_owned()))?;
        let sizes = RegionSizes { counter_count, ..spec.sizes };
        let map = sizes.map().map_err(CreateError::Spec)?;
        let header = header_of(&spec.identity, &map);
        let made = match place {
            Place::Private => {
                let memory = Memory::anonymous(map.region_bytes())
                    .map_err(|e| CreateError::system("taking memory for the region", e))?;
                let memory = Arc::new(memory);
                fill(&memory, &header, &map, &spec.counters);
                publish(&memory);
                Made { memory, file: None }
            }
            Place::Memfd => make_memfd(&header, &map, &spec.counters, on_step)?,
            Place::File(path) => make_file(path, &header, &map, &spec.counters, on_step)?,
        };
        let header = RegionHeader { version: LAYOUT_VERSION, ..header };
        Ok(Self::with(made, header, map, true))
    }

    /// Takes over a region in file form whose process has died, with what it left in it: each
    /// shard's new owner drops the routes that stand there. Not for a region whose writer lives.
    ///
    /// # Errors
    /// As [`CreateError`].
    pub fn adopt(path: &Path) -> Result<Self, CreateError> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|e| CreateError::system(format!("opening {}", path.display()), e))?;
        let view = RegionView::map_unsealed(&file).map_err(CreateError::Adopt)?;
        let (header, map) = (*view.header(), view.map().clone());
        let memory = Memory::writable(&file, map.region_bytes())
            .map_err(|e| CreateError::system(format!("mapping {}", path.display()), e))?;
        let made = Made { memory: Arc::new(memory), file: Some(file) };
        Ok(Self::with(made, header, map, false))
    }

    fn with(made: Made, header: RegionHeader, map: RegionMap, is_fresh: bool) -> Self {
        let cores = usize::from(map.core_count());
        Self {
            memory: made.memory,
            header,
            map,
            file: made.file,
            is_fresh,
            shards_given: vec![false; cores],
            blocks_given: vec![false; cores],
        }
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> &RegionHeader {
        &self.header
    }

    /// Where everything lies.
    #[must_use]
    pub fn map(&self) -> &RegionMap {
        &self.map
    }

    /// The descriptor others open through this process's fd directory; `None` for a private one.
    #[must_use]
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// The right to write a core's shard. It is given once.
    pub fn take_shard(&mut self, core: u16) -> Option<Shard> {
        let given = self.shards_given.get_mut(usize::from(core))?;
        if std::mem::replace(given, true) {
            return None;
        }
        Some(Shard {
            core,
            is_fresh: self.is_fresh,
            head: self.words(SectionKind::ShardHeads, core)?,
            route_hot: self.words(SectionKind::RouteHot, core)?,
            route_cold: self.words(SectionKind::RouteCold, core)?,
            id_arena: self.words(SectionKind::IdArena, core)?,
            node_hot: self.words(SectionKind::NodeHot, core)?,
            node_cold: self.words(SectionKind::NodeCold, core)?,
        })
    }

    /// The right to write a core's counters. It is given once.
    pub fn take_counters(&mut self, core: u16) -> Option<CounterBlock> {
        let given = self.blocks_given.get_mut(usize::from(core))?;
        if std::mem::replace(given, true) {
            return None;
        }
        self.words(SectionKind::CounterValues, core).map(CounterBlock::new)
    }

    /// The reading side, for threads of this process.
    #[must_use]
    pub fn view(&self) -> RegionView {
        RegionView::of_own(self.memory.clone(), self.header, self.map.clone())
    }

    fn words(&self, kind: SectionKind, core: u16) -> Option<WriteWords> {
        Some(WriteWords::new(&self.memory, self.map.shard_words(kind, core)?))
    }
}

struct Made {
    memory: Arc<Memory>,
    file: Option<OwnedFd>,
}

fn header_of(identity: &RegionIdentity, map: &RegionMap) -> RegionHeader {
    let mut header = RegionHeader {
        magic: MAGIC,
        version: 0,
        layout_hash: LAYOUT_HASH,
        header_bytes: HEADER_BYTES,
        region_bytes: map.region_bytes(),
        core_count: u32::from(map.core_count()),
        section_count: SectionKind::ALL.len() as u32,
        hash_seed: identity.hash_seed,
        node_generation: identity.node_generation,
        created_at_ns: identity.created_at.0,
        pid: u64::from(identity.process.pid),
        start_time_ticks: identity.process.start_time_ticks,
        boot_id: identity.process.boot_id,
        mesh: [0; 256],
        rid: [0; 256],
        reserved: [0; 3],
        sections: map.table(),
    };
    put_text(&mut header.mesh, identity.mesh.as_str().as_bytes());
    put_text(&mut header.rid, identity.rid.as_bytes());
    header
}

/// Writes everything but the version.
fn fill(memory: &Arc<Memory>, header: &RegionHeader, map: &RegionMap, counters: &[CounterSpec]) {
    let mut all = WriteWords::new(memory, 0..memory.word_count());
    let words: [u64; RegionHeader::WORDS] = zerocopy::transmute!(*header);
    all.put(0, &words);
    let Some(labels) = map.shard_words(SectionKind::CounterLabels, 0) else { return };
    for (spec, at) in counters.iter().zip(labels.step_by(CounterLabel::WORDS)) {
        let mut label = CounterLabel { id: spec.id, reserved: 0, unit: [0; 16], label: [0; 104] };
        put_text(&mut label.unit, spec.unit.as_bytes());
        put_text(&mut label.label, spec.label.as_bytes());
        let words: [u64; CounterLabel::WORDS] = zerocopy::transmute!(label);
        all.put(at, &words);
    }
}

fn publish(memory: &Arc<Memory>) {
    WriteWords::new(memory, 0..memory.word_count()).publish(VERSION_AT, LAYOUT_VERSION);
}

fn make_memfd(
    header: &RegionHeader,
    map: &RegionMap,
    counters: &[CounterSpec],
    on_step: &mut dyn FnMut(CreateStep),
) -> Result<Made, CreateError> {
    let plain = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 do not know the flag that forbids to make it executable.
    let file = match rustix::fs::memfd_create("homing-region", plain | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create("homing-region", plain),
        made => made,
    }
    .map_err(|e| CreateError::system("making the region's memfd", e))?;
    rustix::fs::fchmod(&file, Mode::RUSR)
        .map_err(|e| CreateError::system("restricting the region's memfd to its owner", e))?;
    on_step(CreateStep::Opened);
    reserve(&file, map.region_bytes(), "the memory of this host")?;
    on_step(CreateStep::Reserved);
    let memory = Memory::writable(&file, map.region_bytes())
        .map_err(|e| CreateError::system("mapping the region", e))?;
    let memory = Arc::new(memory);
    fill(&memory, header, map, counters);
    on_step(CreateStep::Filled);
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)
        .map_err(|e| CreateError::system("sealing the region's memfd", e))?;
    on_step(CreateStep::Sealed);
    publish(&memory);
    on_step(CreateStep::Published);
    Ok(Made { memory, file: Some(file) })
}

fn make_file(
    path: &Path,
    header: &RegionHeader,
    map: &RegionMap,
    counters: &[CounterSpec],
    on_step: &mut dyn FnMut(CreateStep),
) -> Result<Made, CreateError> {
    let temporary = temporary_name(path);
    let made = make_named(&temporary, header, map, counters, on_step).and_then(|made| {
        fs::rename(&temporary, path)
            .map_err(|e| CreateError::system(format!("naming {}", path.display()), e))?;
        on_step(CreateStep::Named);
        Ok(made)
    });
    if made.is_err() {
        // It is of no use to anyone; the next start would remove it too.
        let _ = fs::remove_file(&temporary);
    }
    made
}

fn make_named(
    temporary: &Path,
    header: &RegionHeader,
    map: &RegionMap,
    counters: &[CounterSpec],
    on_step: &mut dyn FnMut(CreateStep),
) -> Result<Made, CreateError> {
    let shown = temporary.display();
    match fs::remove_file(temporary) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            return Err(CreateError::system(format!("removing the old {shown}"), e));
        }
        _ => {}
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::open(temporary, flags, Mode::RUSR | Mode::WUSR)
        .map_err(|e| CreateError::system(format!("creating {shown}"), e))?;
    on_step(CreateStep::Opened);
    reserve(&file, map.region_bytes(), &shown.to_string())?;
    on_step(CreateStep::Reserved);
    let memory = Memory::writable(&file, map.region_bytes())
        .map_err(|e| CreateError::system(format!("mapping {shown}"), e))?;
    let memory = Arc::new(memory);
    fill(&memory, header, map, counters);
    on_step(CreateStep::Filled);
    on_step(CreateStep::Sealed);
    publish(&memory);
    on_step(CreateStep::Published);
    Ok(Made { memory, file: Some(file) })
}

/// Takes the space now: a page that cannot be had later is a SIGBUS.
fn reserve(file: &OwnedFd, bytes: u64, place: &str) -> Result<(), CreateError> {
    let reserved = rustix::io::retry_on_intr(|| {
        rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes)
    });
    let written = match reserved {
        // A file system that cannot reserve: writing takes the space as well.
        Err(Errno::OPNOTSUPP) => write_zeros(file, bytes),
        other => other,
    };
    written.map_err(|e| match e {
        Errno::NOSPC | Errno::DQUOT | Errno::NOMEM | Errno::FBIG => {
            CreateError::NoSpace { bytes, place: place.to_owned() }
        }
        e => CreateError::system(format!("reserving {bytes} bytes in {place}"), e),
    })
}

fn write_zeros(file: &OwnedFd, bytes: u64) -> rustix::io::Result<()> {
    let zeros = vec![0u8; 1 << 16];
    let mut at = 0;
    while at < bytes {
        let len = zeros.len().min((bytes - at) as usize);
        at += rustix::io::retry_on_intr(|| rustix::io::pwrite(file, &zeros[..len], at))? as u64;
    }
    Ok(())
}

/// The name under which a file is made before it gets its own.
pub(super) fn temporary_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    PathBuf::from(name)
}

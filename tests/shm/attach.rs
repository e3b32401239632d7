#![forbid(unsafe_code)]
//! Attaching to a region of another process, and refusing what is not one.

use std::fs;
use std::io::Write as _;
use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::path::Path;

use homing::ids::ObjectKind;
use homing::layout::{RegionHeader, Section, SectionKind};
use homing::route::RouteReader;
use homing::shm::{Announcement, AttachError, Claim, Place, ProcessIdentity, Region, RegionView};
use memmap2::MmapOptions;
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::process::Signal;

use crate::eventually::eventually;
use crate::process::{Other, part, say, wait_for_end};
use crate::world::{NOW, SIZES, cache, check, ids, owner, route, spec};

/// A node's part: a region with routes, announced.
fn be_a_node(dir: &str) {
    let spec = spec(SIZES);
    let mut claim = Claim::take(dir.as_ref(), &spec.identity.rid, &mut |_| ()).unwrap();
    let mut region = Region::create(&spec, Place::Memfd, &mut |_| ()).unwrap();
    let mut cache = cache(&mut region);
    cache.see_node(owner(1));
    for (n, id) in ids().iter().take(4).enumerate() {
        cache.insert(route(id, 1, 1 + n as u64), NOW);
    }
    cache.beat(NOW);
    claim.announce(&region, ProcessIdentity::own().unwrap(), &mut |_| ()).unwrap();
    say("announced");
    wait_for_end();
}

fn state_of(pid: i32) -> Option<u8> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(text.as_bytes()[text.rfind(')')? + 2])
}

/// Another process's routes are read while it lives, stopped or not, and cannot be changed.
#[test]
fn a_node_is_read_and_cannot_be_changed() {
    if let Some(dir) = part() {
        return be_a_node(&dir);
    }
    let dir = tempfile::tempdir().unwrap();
    let mut node = Other::start(dir.path().to_str().unwrap());
    node.wait_for("announced");
    node.signal(Signal::STOP);
    let pid = node.pid().as_raw_nonzero().get();
    eventually("the node to stop", || (state_of(pid) == Some(b'T')).then_some(()));

    let announcement = Announcement::read(&dir.path().join("here.node")).unwrap();
    let view = RegionView::of_node(&announcement).unwrap();
    let reader = RouteReader::new(&view);
    for (n, id) in ids().iter().take(4).enumerate() {
        let seen = reader.lookup(ObjectKind::Actor, id, NOW).expect("a stopped node can be read");
        assert_eq!(check(&seen), 1 + n as u64);
        assert_eq!(reader.node(&seen).unwrap().rid.as_bytes(), b"owner");
    }
    assert_eq!(view.mesh().unwrap().as_str(), "m");
    nothing_can_be_changed(&announcement);

    node.kill();
    assert!(matches!(RegionView::of_node(&announcement), Err(AttachError::Ended(_))));
    let seen = reader.lookup(ObjectKind::Actor, &ids()[0], NOW);
    assert_eq!(check(&seen.expect("what was mapped stays readable")), 1);
}

fn nothing_can_be_changed(announcement: &Announcement) {
    let path = format!("/proc/{}/fd/{}", announcement.process.pid, announcement.fd);
    let mode = fs::metadata(&path).unwrap().permissions();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777, 0o400);
    // Whoever is root may open it all the same, and gets no further.
    let Ok(file) = rustix::fs::open(&path, OFlags::RDWR, Mode::empty()) else { return };
    assert_eq!(rustix::io::pwrite(&file, b"x", 0), Err(Errno::PERM));
    assert_eq!(rustix::fs::ftruncate(&file, 0), Err(Errno::PERM));
    assert_eq!(rustix::fs::ftruncate(&file, 1 << 30), Err(Errno::PERM));
    assert_eq!(rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE), Err(Errno::PERM));
    assert!(MmapOptions::new().map_raw(&file).is_err(), "no second writable mapping");
}

/// The bytes of a good region of a process that is no more.
fn good_bytes() -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    let mut spec = spec(SIZES);
    spec.identity.process.start_time_ticks += 1;
    let region = Region::create(&spec, Place::File(&path), &mut |_| ()).unwrap();
    drop(region);
    fs::read(&path).unwrap()
}

fn memfd(bytes: &[u8], seals: SealFlags) -> OwnedFd {
    let fd = rustix::fs::memfd_create("t", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC);
    let mut file = fs::File::from(fd.unwrap());
    file.write_all(bytes).unwrap();
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file.into()
}

/// Both ways to read it: mapped, and loaded from a file.
fn read_both_ways(dir: &Path, bytes: &[u8]) -> [Result<RegionView, AttachError>; 2] {
    let path = dir.join("r");
    fs::write(&path, bytes).unwrap();
    [RegionView::attach(memfd(bytes, SealFlags::SHRINK)), RegionView::load(&path)]
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// Every number of the header is checked, and each refusal says which.
#[test]
fn what_is_no_region_of_this_layout_is_refused_with_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let good = good_bytes();
    for read in read_both_ways(dir.path(), &good) {
        assert_eq!(read.unwrap().rid().unwrap().as_bytes(), b"here");
    }
    let section = |kind: SectionKind| {
        offset_of!(RegionHeader, sections) + (kind as usize - 1) * size_of::<Section>()
    };
    let hot = section(SectionKind::RouteHot);
    let nodes = section(SectionKind::NodeHot);
    let word = |value: u64| value.to_ne_bytes().to_vec();
    let half = |value: u32| value.to_ne_bytes().to_vec();
    let len = good.len() as u64;
    let cases: Vec<(usize, Vec<u8>, &str)> = vec![
        (offset_of!(RegionHeader, magic), word(1), "not a region"),
        (offset_of!(RegionHeader, version), word(0), "not finished"),
        (offset_of!(RegionHeader, version), word(2), "layout version 2 and this program reads"),
        (offset_of!(RegionHeader, layout_hash), word(3), "layout hash 0x0000000000000003"),
        (offset_of!(RegionHeader, header_bytes), word(0), "header_bytes is 0"),
        (offset_of!(RegionHeader, region_bytes), word(len + 8), "and has"),
        (offset_of!(RegionHeader, core_count), half(0), "core_count is 0"),
        (offset_of!(RegionHeader, core_count), half(70_000), "core_count is 70000"),
        (offset_of!(RegionHeader, core_count), half(2), "has 1 shards, not 2"),
        (offset_of!(RegionHeader, section_count), half(7), "section_count is 7"),
        (offset_of!(RegionHeader, reserved), word(1), "reserved"),
        (offset_of!(RegionHeader, mesh) + 9, vec![1], "mesh has bytes behind"),
        (offset_of!(RegionHeader, rid) + 200, vec![1], "rid has bytes behind"),
        (hot + offset_of!(Section, kind), half(99), "has kind 99"),
        (hot + offset_of!(Section, kind), half(3), "route_cold is there twice"),
        (hot + offset_of!(Section, shard_count), half(9), "route_hot has 9 shards"),
        (hot + offset_of!(Section, offset_bytes), word(0), "route_hot lies outside"),
        (hot + offset_of!(Section, offset_bytes), word(len), "route_hot lies outside"),
        (hot + offset_of!(Section, offset_bytes), word(u64::MAX - 127), "route_hot lies outside"),
        (hot + offset_of!(Section, offset_bytes), word(4097), "route_hot is not aligned"),
        (hot + offset_of!(Section, offset_bytes), word(4096), "overlap"),
        (hot + offset_of!(Section, shard_bytes), word(u64::MAX - 127), "route_hot lies outside"),
        (hot + offset_of!(Section, shard_bytes), word(128), "too short for 4 items"),
        (hot + offset_of!(Section, item_bytes), half(72), "route_hot has items of 72 bytes"),
        (hot + offset_of!(Section, items_per_shard), half(0), "route_hot has 0 items"),
        (hot + offset_of!(Section, items_per_shard), half(3), "route_hot has 3 items"),
        (hot + offset_of!(Section, items_per_shard), half(u32::MAX), "too short"),
        (hot + offset_of!(Section, reserved), word(1), "reserved"),
        (nodes + offset_of!(Section, items_per_shard), half(1), "node_cold differ in length"),
        (section(SectionKind::CounterValues) + size_of::<Section>(), half(1), "should be empty"),
    ];
    for (at, value, why) in cases {
        let mut bytes = good.clone();
        put(&mut bytes, at, &value);
        for read in read_both_ways(dir.path(), &bytes) {
            let error = read.expect_err(why);
            assert!(matches!(error, AttachError::Refused(_)), "{why}: {error}");
            assert!(error.to_string().contains(why), "{error} instead of {why}");
        }
    }
}

/// Whatever one bit of the header becomes, the region is refused, or read with other content but
/// within its bounds.
#[test]
fn no_flipped_bit_leads_out_of_the_region() {
    let good = good_bytes();
    for bit in 0..size_of::<RegionHeader>() * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let Ok(view) = RegionView::attach(memfd(&bytes, SealFlags::SHRINK)) else { continue };
        let reader = RouteReader::new(&view);
        assert_eq!(view.map().region_bytes(), good.len() as u64);
        for slot in 0..reader.slots() {
            assert_eq!(reader.inspect(0, slot), None, "bit {bit}");
        }
        for row in 0..reader.node_rows() {
            assert_eq!(reader.node_at(0, row), None, "bit {bit}");
        }
        assert_eq!(view.counters().len(), 2, "bit {bit}");
    }
}

/// A reader survives any content behind a good header.
#[test]
fn hostile_content_is_a_miss() {
    let good = good_bytes();
    let ids = ids();
    for seed in 0..200u64 {
        let mut bytes = good.clone();
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        for word in bytes[4096..].chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // Small numbers lead further than random ones.
            let value = if seed % 2 == 0 { state } else { state % 8 };
            word.copy_from_slice(&value.to_ne_bytes());
        }
        let view = RegionView::attach(memfd(&bytes, SealFlags::SHRINK)).unwrap();
        let mut reader = RouteReader::new(&view);
        for id in &ids {
            let seen = reader.lookup(ObjectKind::Actor, id, NOW);
            assert_eq!(seen, None, "nobody guesses a 128-bit hash");
        }
        for slot in 0..reader.slots() {
            let _ = reader.inspect(0, slot);
        }
        for row in 0..reader.node_rows() {
            let _ = reader.node_at(0, row);
        }
        assert_eq!(view.counters().len(), 2);
        // With the right hash in each slot, the other words are looked at too.
        let hash = view_hash(&ids[0]);
        let at = view.map().shard_words(SectionKind::RouteHot, 0).unwrap().start * 8;
        for slot in 0..4 {
            put(&mut bytes, at + slot * 64, &0u64.to_ne_bytes());
            put(&mut bytes, at + slot * 64 + 8, &hash.0.to_ne_bytes());
            put(&mut bytes, at + slot * 64 + 16, &hash.1.to_ne_bytes());
        }
        let view = RegionView::attach(memfd(&bytes, SealFlags::SHRINK)).unwrap();
        reader = RouteReader::new(&view);
        if let Some(seen) = reader.lookup(ObjectKind::Actor, &ids[0], NOW) {
            let _ = reader.fence(&seen);
        }
    }
}

fn view_hash(id: &str) -> (u64, u64) {
    let hash = crate::world::key(id).object_hash();
    (hash.low(), hash.high())
}

#[test]
fn what_could_be_cut_off_or_is_no_file_is_refused() {
    let good = good_bytes();
    let open = RegionView::attach(memfd(&good, SealFlags::GROW));
    assert!(matches!(open, Err(AttachError::NotSealed)), "{open:?}");
    let null: OwnedFd = fs::File::open("/dev/null").unwrap().into();
    assert!(matches!(RegionView::attach(null), Err(AttachError::NotSealed)));
    for len in [0, 8, 4095, 4096, 4100, good.len() - 8] {
        let read = RegionView::attach(memfd(&good[..len], SealFlags::SHRINK));
        assert!(matches!(read, Err(AttachError::Refused(_))), "{len}: {read:?}");
    }
    let dir = tempfile::tempdir().unwrap();
    for path in [dir.path().to_owned(), dir.path().join("none")] {
        assert!(RegionView::load(&path).is_err());
    }
}

/// An announcement whose process is right and whose descriptor is not.
#[test]
fn an_announcement_that_leads_elsewhere_is_refused() {
    let process = ProcessIdentity::own().unwrap();
    let to = |fd: &OwnedFd| Announcement {
        process,
        fd: std::os::fd::AsRawFd::as_raw_fd(fd) as u32,
        region_bytes: 0,
        rid: "here".to_owned(),
    };
    let of_another = memfd(&good_bytes(), SealFlags::SHRINK);
    let read = RegionView::of_node(&to(&of_another));
    assert!(matches!(read, Err(AttachError::OtherProcess { .. })), "{read:?}");
    let none = RegionView::of_node(&Announcement { fd: 999_999, ..to(&of_another) });
    assert!(matches!(none, Err(AttachError::System { .. })), "{none:?}");
}

#![forbid(unsafe_code)]
//! Making a region: without space, killed at each step, twice under one name.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;

use homing::layout::RegionSizes;
use homing::shm::{
    Announcement, AttachError, Claim, ClaimError, CreateError, CreateStep, Place, ProcessIdentity,
    Region, RegionView,
};
use rustix::process::Signal;

use crate::process::{Other, arguments, die, part};
use crate::world::{SIZES, cache, owner, spec};

/// Starts a node's region as a node does.
fn start(dir: &Path, in_file: bool, on_step: &mut dyn FnMut(CreateStep)) -> (Claim, Region) {
    let spec = spec(SIZES);
    let mut claim = Claim::take(dir, &spec.identity.rid, on_step).unwrap();
    let path = claim.region_path();
    let place = if in_file { Place::File(&path) } else { Place::Memfd };
    let region = Region::create(&spec, place, on_step).unwrap();
    claim.announce(&region, ProcessIdentity::own().unwrap(), on_step).unwrap();
    (claim, region)
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn killed_at_each_step_of_its_start() {
    if let Some(part) = part() {
        let (step, rest) = part.split_once(' ').unwrap();
        let (form, dir) = rest.split_once(' ').unwrap();
        let at = CreateStep::ALL[step.parse::<usize>().unwrap()];
        start(Path::new(dir), form == "file", &mut |step| {
            if step == at {
                die();
            }
        });
        panic!("the step {at:?} was not taken");
    }
    for in_file in [false, true] {
        // One directory for all: each start meets what those before have left.
        let dir = tempfile::tempdir().unwrap();
        for (n, step) in CreateStep::ALL.into_iter().enumerate() {
            if step == CreateStep::Named && !in_file {
                continue;
            }
            let form = if in_file { "file" } else { "memfd" };
            let mut node = Other::start(&format!("{n} {form} {}", dir.path().display()));
            assert_eq!(node.wait().signal(), Some(Signal::KILL.as_raw()), "{step:?}");
            nothing_half_made_is_read(dir.path(), in_file, step);
            // Every second time the next start meets it, so that remains meet remains as well.
            if n % 2 == 1 {
                the_next_start_works(dir.path(), in_file, step);
            }
        }
        the_next_start_works(dir.path(), in_file, CreateStep::Announced);
    }
}

fn nothing_half_made_is_read(dir: &Path, in_file: bool, step: CreateStep) {
    if let Ok(announcement) = Announcement::read(&dir.join("here.node")) {
        let read = RegionView::of_node(&announcement);
        assert!(matches!(read, Err(AttachError::Ended(_))), "{step:?}: {read:?}");
    }
    if in_file && dir.join("here.region").exists() {
        let whole = match RegionView::load(&dir.join("here.region")) {
            // The last start before was by this process.
            Err(AttachError::StillWritten(pid)) => pid == std::process::id(),
            read => read.is_ok(),
        };
        assert!(whole, "{step:?}: under its name it is not whole");
    }
    let unnamed = dir.join("here.region.new");
    if unnamed.exists() && step < CreateStep::Published {
        let read = RegionView::load(&unnamed);
        assert!(matches!(read, Err(AttachError::Refused(_))), "{step:?}: {read:?}");
    }
}

fn the_next_start_works(dir: &Path, in_file: bool, step: CreateStep) {
    let (claim, _region) = start(dir, in_file, &mut |_| ());
    let announcement = Announcement::read(&claim.announcement_path()).unwrap();
    assert_eq!(announcement.process, ProcessIdentity::own().unwrap(), "{step:?}");
    let view = RegionView::of_node(&announcement);
    if in_file {
        // It is not sealed, so nobody maps it; it is read when its node is dead.
        assert!(matches!(view, Err(AttachError::NotSealed)), "{step:?}: {view:?}");
        let alive = RegionView::load(&claim.region_path());
        assert!(matches!(alive, Err(AttachError::StillWritten(_))), "{step:?}: {alive:?}");
        assert_eq!(names(dir), ["here.lock", "here.node", "here.region"], "{step:?}");
        assert_eq!(fs::metadata(claim.region_path()).unwrap().mode() & 0o777, 0o600);
    } else {
        assert_eq!(view.unwrap().rid().unwrap().as_bytes(), b"here", "{step:?}");
        assert_eq!(names(dir), ["here.lock", "here.node"], "{step:?}");
    }
}

#[test]
fn a_name_has_one_node_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let (claim, region) = start(dir.path(), false, &mut |_| ());
    let rid = spec(SIZES).identity.rid;
    let second = Claim::take(dir.path(), &rid, &mut |_| ()).unwrap_err();
    assert!(matches!(second, ClaimError::Held { pid: Some(pid), .. } if pid == std::process::id()));
    assert!(
        second.to_string().starts_with("a node named here runs already in process"),
        "{second}"
    );
    drop((claim, region));
    assert_eq!(names(dir.path()), ["here.lock"], "an orderly end takes the announcement away");
    Claim::take(dir.path(), &rid, &mut |_| ()).unwrap();
}

/// A file system of 1 MiB, seen by the other process alone.
#[test]
fn no_space_is_an_error_and_never_a_sigbus() {
    if let Some(dir) = part() {
        return in_a_small_file_system(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    let may = |args: &[&str]| {
        let status = Command::new("unshare").args(args).args(["--mount", "true"]).status();
        status.is_ok_and(|status| status.success())
    };
    let root: &[&str] = if may(&[]) { &[] } else { &["--user", "--map-root-user"] };
    assert!(
        may(root),
        "this test mounts a tmpfs of 1 MiB in a name space of its own, and `unshare --mount` (of \
         util-linux) does not work here: run it as root, or allow user name spaces"
    );
    let script = "mount -t tmpfs -o size=1m none \"$HOMING_SHM_TEST_PART\" && exec \"$@\"";
    let output = Command::new("unshare")
        .args(root)
        .args(["--mount", "sh", "-c", script, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(arguments())
        .env("HOMING_SHM_TEST_PART", dir.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("it fitted"), "{text}\n{errors}");
}

fn in_a_small_file_system(dir: &Path) {
    let path = dir.join("r");
    let too_large = spec(RegionSizes::of_node(1, 65_536));
    let error = Region::create(&too_large, Place::File(&path), &mut |_| ()).unwrap_err();
    assert!(matches!(error, CreateError::NoSpace { bytes, .. } if bytes > 8 << 20), "{error}");
    assert!(error.to_string().contains("cache fewer routes"), "{error}");
    assert!(names(dir).is_empty(), "nothing is left behind");
    // What fits is there to its last byte, however full the rest gets.
    let sizes = RegionSizes { routes_per_core: 4096, ..SIZES };
    let mut region = Region::create(&spec(sizes), Place::File(&path), &mut |_| ()).unwrap();
    let filler = fs::write(dir.join("filler"), vec![1; 1 << 20]);
    assert!(filler.is_err(), "the file system is full now");
    let mut shard = region.take_shard(0).unwrap();
    for words in [&mut shard.route_hot, &mut shard.route_cold, &mut shard.node_cold] {
        (0..words.len()).for_each(|at| words.store(at, 0));
    }
    drop(shard);
    println!("it fitted");
}

#[test]
fn sizes_out_of_bounds_are_refused() {
    for (sizes, why) in [
        (RegionSizes { core_count: 0, ..SIZES }, "0 cores"),
        (RegionSizes { core_count: 257, ..SIZES }, "257 cores"),
        (RegionSizes { routes_per_core: 6, ..SIZES }, "6 routes"),
        (RegionSizes { routes_per_core: 2, ..SIZES }, "2 routes"),
        (RegionSizes { node_rows_per_core: 1 << 25, ..SIZES }, "node rows"),
    ] {
        let error = Region::create(&spec(sizes), Place::Private, &mut |_| ()).unwrap_err();
        assert!(matches!(error, CreateError::Spec(_)), "{error}");
        assert!(error.to_string().contains(why), "{error}");
        let error = homing::Error::from(error);
        assert_eq!(error.kind(), homing::ErrorKind::NotConfigured);
    }
}

/// Cores share no shard, and a shard is given once.
#[test]
fn each_core_has_its_own_words() {
    let sizes = RegionSizes { core_count: 3, ..SIZES };
    let mut region = Region::create(&spec(sizes), Place::Memfd, &mut |_| ()).unwrap();
    let blocks: Vec<_> = (0..3).map(|core| region.take_counters(core).unwrap()).collect();
    for (core, block) in blocks.iter().enumerate() {
        block.add(0, 10 + core as u64);
        block.set(1, 100 * core as u64);
    }
    assert!(region.take_counters(0).is_none() && region.take_counters(3).is_none());
    let counters = region.view().counters();
    assert_eq!(counters[0].per_core, [10, 11, 12]);
    assert_eq!((counters[0].label.as_str(), counters[0].sum()), ("writes", 33));
    assert_eq!((counters[1].unit.as_str(), counters[1].per_core[2]), ("ns", 200));

    let mut one = cache(&mut region);
    one.see_node(owner(1));
    let other = region.view().shard(1).unwrap();
    assert!((0..other.node_hot.len()).all(|at| other.node_hot.load(at) == 0));
    assert!(region.take_shard(0).is_none() && region.take_shard(2).is_some());
}

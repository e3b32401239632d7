#![forbid(unsafe_code)]
//! Core threads: names and processors.

use std::sync::mpsc;
use std::thread::JoinHandle;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::Error;

/// Processors this process may use.
#[allow(clippy::disallowed_methods)] // the real machine
pub(super) fn processors() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u32)
}

/// Starts a thread called `name` (its first 15 bytes are shown by the system), on processor `pin`
/// only when that is given, and returns when the thread runs there.
///
/// # Errors
/// `NotConfigured` when the process may not use that processor; `InternalFailure` when the system
/// starts no thread. Then `body` has not run.
pub fn spawn_core<T: Send + 'static>(
    name: &str,
    pin: Option<usize>,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Error> {
    let cannot =
        |reason: String| Error::internal(format!("cannot start thread {name:?}: {reason}"));
    if name.contains('\0') {
        return Err(cannot("its name has a NUL byte".into()));
    }
    if let Some(processor) = pin {
        check_processor(processor)?;
    }
    let (ready, started) = mpsc::sync_channel(1);
    let run = move || {
        let pinned = pin.map_or(Ok(()), pin_this_thread);
        let goes_on = pinned.is_ok();
        if ready.send(pinned).is_err() || !goes_on {
            // Ends the thread without a panic's message; its handle is not given out.
            std::panic::resume_unwind(Box::new(()));
        }
        body()
    };
    let thread = std::thread::Builder::new().name(name.to_string());
    #[allow(clippy::disallowed_methods)] // the real threads
    let handle = thread.spawn(run).map_err(|e| cannot(e.to_string()))?;
    match started.recv() {
        Ok(Ok(())) => Ok(handle),
        Ok(Err(reason)) => Err(cannot(reason)),
        Err(_) => Err(cannot("it ended at once".into())),
    }
}

fn pin_this_thread(processor: usize) -> Result<(), String> {
    let mut set = CpuSet::new();
    set.set(processor);
    sched_setaffinity(None, &set).map_err(|e| {
        let reason = std::io::Error::from(e);
        format!("it cannot be bound to processor {processor}: {reason}")
    })
}

fn check_processor(processor: usize) -> Result<(), Error> {
    let allowed = sched_getaffinity(None)
        .map_err(|e| Error::internal(format!("cannot ask for the processors: {e}")))?;
    if processor < CpuSet::MAX_CPU && allowed.is_set(processor) {
        return Ok(());
    }
    let usable: Vec<_> =
        (0..CpuSet::MAX_CPU).filter(|n| allowed.is_set(*n)).map(|n| n.to_string()).collect();
    Err(Error::not_configured(format!(
        "a core is to be bound to processor {processor}; this process may use {}",
        usable.join(", ")
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_runs_there() {
        let allowed = sched_getaffinity(None).unwrap();
        let processor = (0..CpuSet::MAX_CPU).rev().find(|n| allowed.is_set(*n)).unwrap();
        let thread = spawn_core("pinned", Some(processor), move || {
            let set = sched_getaffinity(None).unwrap();
            (set.count(), set.is_set(processor), std::thread::current().name().map(String::from))
        });
        let seen = thread.unwrap().join().unwrap();
        assert_eq!(seen, (1, true, Some("pinned".into())));
    }

    #[test]
    fn a_processor_that_is_not_there_is_named_and_nothing_runs() {
        for processor in [CpuSet::MAX_CPU - 1, CpuSet::MAX_CPU, usize::MAX] {
            let e = spawn_core("x", Some(processor), || panic!("ran")).unwrap_err();
            assert_eq!(e.kind(), crate::ErrorKind::NotConfigured);
            assert!(e.text().contains(&processor.to_string()), "{e}");
        }
        assert!(spawn_core("a\0b", None, || ()).is_err());
    }
}

#![forbid(unsafe_code)]
//! Whose turn it is to write: a wait for LMDB's write mutex that can end.
//!
//! LMDB's mutex has no timed wait. So writers first take a file lock without blocking, again and
//! again until their time is over; whoever has it finds LMDB's mutex free. The kernel drops the
//! lock with its holder. Threads of one process, which share the lock's file, take turns before.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::time::Timespec;

use crate::store::boottime;
use crate::time::Nanos;

/// Tries with a yield in between, before the first sleep. A commit takes about 10 µs.
const EAGER_TRIES: u32 = 16;
const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(super) struct Turns {
    file: File,
    taken: Mutex<bool>,
    given_back: Condvar,
}

/// The turn; given back when dropped.
#[derive(Debug)]
pub(super) struct Turn<'a>(&'a Turns);

/// Why there was no turn.
#[derive(Debug)]
pub(super) enum NoTurn {
    /// Another thread of this process has it.
    ThisProcess,
    /// Another process has it.
    OtherProcess,
    /// The kernel refuses.
    Refused(io::Error),
}

impl fmt::Display for NoTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ThisProcess => f.write_str(
                "another thread of this process was writing for the whole time of the call",
            ),
            Self::OtherProcess => f.write_str(
                "another process held the write lock for the whole time of the call; a process \
                 that is stopped inside a write holds it until it goes on or is killed",
            ),
            Self::Refused(e) => write!(f, "the write lock cannot be taken: {e}"),
        }
    }
}

impl Turns {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        Ok(Self { file, taken: Mutex::new(false), given_back: Condvar::new() })
    }

    /// Waits for the turn, until `deadline` at most.
    pub(super) fn take(&self, deadline: Nanos) -> Result<Turn<'_>, NoTurn> {
        self.take_among_threads(deadline)?;
        // From here on the turn is given back on every way out.
        let turn = Turn(self);
        let mut pause = FIRST_PAUSE;
        for tries in 0u32.. {
            match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(rustix::io::Errno::WOULDBLOCK) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => return Err(NoTurn::Refused(e.into())),
            }
            let left = deadline.since(boottime());
            if left.is_zero() {
                return Err(NoTurn::OtherProcess);
            }
            if tries < EAGER_TRIES {
                #[allow(clippy::disallowed_methods)] // on a Store thread, never on a core
                std::thread::yield_now();
                continue;
            }
            nap(pause.min(left));
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Ok(turn)
    }

    fn take_among_threads(&self, deadline: Nanos) -> Result<(), NoTurn> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        while *taken {
            let left = deadline.since(boottime());
            if left.is_zero() {
                return Err(NoTurn::ThisProcess);
            }
            (taken, _) =
                self.given_back.wait_timeout(taken, left).unwrap_or_else(PoisonError::into_inner);
        }
        *taken = true;
        Ok(())
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Unlocking a lock that was never taken does nothing.
        let _ = flock(&self.0.file, FlockOperation::Unlock);
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.given_back.notify_one();
    }
}

fn nap(time: Duration) {
    let time = Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    };
    // Woken early by a signal: the caller looks again.
    #[allow(clippy::disallowed_methods)] // on a Store thread, never on a core
    let _ = rustix::thread::nanosleep(&time);
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // threads of the tests
mod tests {
    use super::*;

    /// Two `Turns` of one file stand for two processes: their file descriptions differ.
    #[test]
    fn a_turn_excludes_threads_and_processes_until_it_is_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("writer.lock");
        let (here, there) = (Turns::open(&path).unwrap(), Turns::open(&path).unwrap());
        let soon = || boottime() + Duration::from_millis(5);
        let turn = here.take(soon()).unwrap();
        assert!(matches!(here.take(soon()), Err(NoTurn::ThisProcess)));
        assert!(matches!(there.take(soon()), Err(NoTurn::OtherProcess)));
        drop(turn);
        drop(there.take(soon()).expect("given back"));
        drop(here.take(soon()).expect("a failed try gave its share back"));
    }

    #[test]
    fn a_waiting_thread_gets_the_turn_when_it_is_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let turns = Turns::open(&dir.path().join("writer.lock")).unwrap();
        let turn = turns.take(Nanos::MAX).unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| turns.take(Nanos::MAX).map(drop).is_ok());
            drop(turn);
            assert!(waiter.join().unwrap());
        });
    }
}

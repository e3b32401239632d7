#![forbid(unsafe_code)]
//! The drivers of a node's cores: the kind that was asked for, or what can be had of it.

use crate::env::{ConnId, Endpoint, Event};
use crate::error::Error;
use crate::time::Nanos;
use crate::transport::driver::{Driver, StreamParts, Waker};
use crate::transport::epoll::Epoll;
use crate::transport::kind::DriverKind;
use crate::transport::listen::BoundListener;
use crate::transport::uring::Uring;

/// A driver of either kind. All cores of a node have the same kind, so the branch is always the
/// same one.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // one per core, moved to its thread once
pub enum Chosen {
    /// On io_uring.
    Uring(Uring),
    /// On epoll.
    Epoll(Epoll),
}

/// The drivers of all cores of a node, and what kind they are.
#[derive(Debug)]
pub struct ChosenDrivers {
    /// Never `Auto`.
    pub kind: DriverKind,
    /// One per core.
    pub drivers: Vec<Chosen>,
}

/// Makes the drivers. With [`DriverKind::Auto`] and no io_uring to be had, logs one line that says
/// why, and makes them of epoll.
///
/// # Errors
/// `NotConfigured` when io_uring was asked for by name and is refused; `InternalFailure` when the
/// kernel refuses what epoll needs.
pub fn choose(wanted: DriverKind, cores: u16) -> Result<ChosenDrivers, Error> {
    if wanted != DriverKind::Epoll {
        match urings(cores) {
            Ok(drivers) => return Ok(ChosenDrivers { kind: DriverKind::Uring, drivers }),
            Err(reason) if wanted == DriverKind::Uring => {
                return Err(Error::not_configured(format!(
                    "driver is uring, and the system refuses io_uring ({reason}); allow it, or set \
                     driver to auto or epoll"
                )));
            }
            Err(reason) => {
                tracing::warn!(reason, "io_uring is refused; the node uses epoll");
            }
        }
    }
    let drivers =
        (0..cores).map(|_| Epoll::new().map(Chosen::Epoll)).collect::<Result<_, Error>>()?;
    Ok(ChosenDrivers { kind: DriverKind::Epoll, drivers })
}

/// A ring for each core, or why not.
fn urings(cores: u16) -> Result<Vec<Chosen>, String> {
    Uring::probe()?;
    (0..cores).map(|_| Uring::new().map(Chosen::Uring).map_err(|e| e.text().to_owned())).collect()
}

macro_rules! each {
    ($chosen:expr, $driver:ident => $call:expr) => {
        match $chosen {
            Chosen::Uring($driver) => $call,
            Chosen::Epoll($driver) => $call,
        }
    };
}

impl Driver for Chosen {
    /// What [`DriverKind::Auto`] comes to.
    fn new() -> Result<Self, Error> {
        let mut drivers = choose(DriverKind::Auto, 1)?.drivers;
        drivers.pop().ok_or_else(|| Error::internal("no driver for the one core"))
    }

    fn waker(&self) -> Waker {
        each!(self, driver => driver.waker())
    }

    fn listen(&mut self, listener: BoundListener) -> Result<(), Error> {
        each!(self, driver => driver.listen(listener))
    }

    fn stop_listening(&mut self) {
        each!(self, driver => driver.stop_listening());
    }

    fn dial(&mut self, endpoint: &Endpoint) -> ConnId {
        each!(self, driver => driver.dial(endpoint))
    }

    fn write(&mut self, conn: ConnId, bytes: &mut Vec<u8>) {
        each!(self, driver => driver.write(conn, bytes));
    }

    fn unsent_bytes(&self, conn: ConnId) -> usize {
        each!(self, driver => driver.unsent_bytes(conn))
    }

    fn close(&mut self, conn: ConnId, flush: bool) {
        each!(self, driver => driver.close(conn, flush));
    }

    fn take_out(&mut self, conn: ConnId, unread: &mut Vec<u8>) -> Option<StreamParts> {
        each!(self, driver => driver.take_out(conn, unread))
    }

    fn adopt(&mut self, parts: StreamParts) -> ConnId {
        each!(self, driver => driver.adopt(parts))
    }

    fn has_due(&self) -> bool {
        each!(self, driver => driver.has_due())
    }

    fn poll<M>(&mut self, events: &mut Vec<Event<M>>, now: Nanos, wait_until: Option<Nanos>) {
        each!(self, driver => driver.poll(events, now, wait_until));
    }
}

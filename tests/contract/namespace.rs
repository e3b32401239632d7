#![forbid(unsafe_code)]
//! A network of two hosts whose packets can be made to vanish: two network namespaces and a pair of
//! virtual interfaces between them.
//!
//! To vanish, each side addresses its packets to a station that is not there: nothing is refused,
//! nothing is reset, and both ends believe their link is up. It needs no more than `ip`.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

static SERIAL: AtomicU32 = AtomicU32::new(0);

const NEEDED: &str = "this test makes network namespaces: it needs root (or CAP_SYS_ADMIN and \
                      CAP_NET_ADMIN) and the command `ip` of the package iproute2; `./tools/test` \
                      installs that where it may";

/// The two hosts. Dropped, they are gone, also when the test failed.
pub(crate) struct TwoHosts {
    names: [String; 2],
}

const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];
const STATIONS: [&str; 2] = ["02:00:00:00:00:01", "02:00:00:00:00:02"];
const NOBODY: &str = "02:00:00:00:00:99";
/// The interface, in each of its namespaces.
const INTERFACE: &str = "wire";

fn ip(arguments: &[&str]) -> Result<(), String> {
    let ran = Command::new("ip").args(arguments).output();
    let output = ran.map_err(|e| format!("`ip` cannot be run: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("`ip {}` failed: {}", arguments.join(" "), said.trim()))
}

#[track_caller]
fn must(result: Result<(), String>) {
    if let Err(e) = result {
        panic!("{e}; {NEEDED}");
    }
}

impl TwoHosts {
    #[track_caller]
    pub(crate) fn new() -> Self {
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let id = std::process::id();
        let hosts = Self { names: [0, 1].map(|n| format!("homing-{id}-{serial}-{n}")) };
        let [a, b] = [&hosts.names[0][..], &hosts.names[1][..]];
        must(ip(&["netns", "add", a]));
        must(ip(&["netns", "add", b]));
        must(ip(&[
            "-n",
            a,
            "link",
            "add",
            INTERFACE,
            "address",
            STATIONS[0],
            "type",
            "veth",
            "peer",
            "name",
            INTERFACE,
            "address",
            STATIONS[1],
            "netns",
            b,
        ]));
        for (name, address) in [(a, ADDRESSES[0]), (b, ADDRESSES[1])] {
            let address = format!("{address}/24");
            must(ip(&["-n", name, "address", "add", &address, "dev", INTERFACE]));
            must(ip(&["-n", name, "link", "set", INTERFACE, "up"]));
            must(ip(&["-n", name, "link", "set", "lo", "up"]));
        }
        hosts.vanish(false);
        hosts
    }

    /// Lets every packet between the hosts vanish, or no longer.
    #[track_caller]
    pub(crate) fn vanish(&self, vanishes: bool) {
        for (here, there) in [(0, 1), (1, 0)] {
            let station = if vanishes { NOBODY } else { STATIONS[there] };
            must(ip(&[
                "-n",
                &self.names[here],
                "neighbour",
                "replace",
                ADDRESSES[there],
                "lladdr",
                station,
                "dev",
                INTERFACE,
                "nud",
                "permanent",
            ]));
        }
    }

    /// An endpoint on a host.
    pub(crate) fn endpoint(&self, host: usize, port: u16) -> String {
        format!("tcp://{}:{port}", ADDRESSES[host])
    }

    /// What starts a process on a host.
    pub(crate) fn launcher(&self, host: usize) -> [&str; 4] {
        ["ip", "netns", "exec", &self.names[host]]
    }
}

impl Drop for TwoHosts {
    fn drop(&mut self) {
        for name in &self.names {
            // The interfaces go with their namespaces; one that was not made is as good.
            let _ = ip(&["netns", "delete", name]);
        }
    }
}

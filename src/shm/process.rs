#![forbid(unsafe_code)]
//! Which process: a pid alone names another one sooner or later.

use std::fs;
use std::io;
use std::path::Path;

/// A process for as long as the host exists: its pid, when it started, and under which boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessIdentity {
    /// The pid.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start_time_ticks: u64,
    /// The boot.
    pub boot_id: [u8; 16],
}

impl ProcessIdentity {
    /// This process.
    ///
    /// # Errors
    /// When `/proc` is not there or reads in another way than Linux writes it.
    pub fn own() -> io::Result<Self> {
        let pid = std::process::id();
        let (_, start_time_ticks) = stat(pid)?;
        Ok(Self { pid, start_time_ticks, boot_id: boot_id()? })
    }

    /// Whether exactly this process is there still. One that ended and waits to be collected by
    /// its parent is not. A stopped one is.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let same_boot = boot_id().is_ok_and(|boot| boot == self.boot_id);
        same_boot
            && stat(self.pid).is_ok_and(|(state, start)| {
                start == self.start_time_ticks && !matches!(state, b'Z' | b'X' | b'x')
            })
    }
}

/// State and start time out of `/proc/PID/stat`.
fn stat(pid: u32) -> io::Result<(u8, u64)> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read(&path)?;
    parse_stat(&text).ok_or_else(|| {
        let text = String::from_utf8_lossy(&text).into_owned();
        io::Error::new(io::ErrorKind::InvalidData, format!("{path} reads {text:?}"))
    })
}

/// The fields behind the name, which is in parentheses and may contain anything.
fn parse_stat(text: &[u8]) -> Option<(u8, u64)> {
    let end = text.iter().rposition(|b| *b == b')')?;
    let rest = std::str::from_utf8(&text[end + 1..]).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    // Field 22 of the line; state is field 3.
    let start = fields.nth(18)?.parse().ok()?;
    Some((state, start))
}

fn boot_id() -> io::Result<[u8; 16]> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = fs::read_to_string(path)?;
    parse_hex(&text.trim().replace('-', "")).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{} reads {text:?}", path.display()))
    })
}

/// 32 hex digits.
pub(super) fn parse_hex(text: &str) -> Option<[u8; 16]> {
    if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u128::from_str_radix(text, 16).ok().map(u128::to_be_bytes)
}

/// What [`parse_hex`] reads.
pub(super) fn hex(bytes: [u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_alive_and_its_neighbours_in_name_are_not() {
        let own = ProcessIdentity::own().unwrap();
        assert!(own.is_alive());
        let later = ProcessIdentity { start_time_ticks: own.start_time_ticks + 1, ..own };
        assert!(!later.is_alive(), "the pid was used again");
        let mut boot_id = own.boot_id;
        boot_id[3] ^= 1;
        assert!(!ProcessIdentity { boot_id, ..own }.is_alive(), "another boot");
        assert!(!ProcessIdentity { pid: u32::MAX, ..own }.is_alive());
    }

    #[test]
    fn a_name_may_look_like_the_rest_of_the_line() {
        let numbers: Vec<String> = (4..=52).map(|n| n.to_string()).collect();
        let line = format!("7 (a) S 1 (b) R {}\n", numbers.join(" "));
        assert_eq!(parse_stat(line.as_bytes()), Some((b'R', 22)));
        assert_eq!(parse_stat(b"7 (a) R 1 2"), None);
        assert_eq!(parse_stat(b""), None);
    }

    #[test]
    fn hex_is_read_as_it_was_written() {
        let bytes = *b"\x00\x01abcdefghijkl\xfe\xff";
        assert_eq!(parse_hex(&hex(bytes)), Some(bytes));
        assert_eq!(parse_hex("+0000000000000000000000000000000"), None);
        assert_eq!(parse_hex("00"), None);
    }
}

#![forbid(unsafe_code)]
//! Endpoints as sockets: binding, and what becomes of the file of a Unix socket.
//!
//! A process that dies leaves its Unix socket's file behind. It is replaced only when nobody
//! answers on it; a file that is something else, or on which somebody answers, is left alone and
//! the node does not start. Between two processes that find the same stale file at once a lock on
//! the directory decides (it is held while a socket is bound, and leaves no file). The file is
//! removed with the listener, if it is still this listener's.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::env::{Endpoint, MAX_UNIX_PATH_BYTES};
use crate::error::Error;

/// Streams that may wait to be accepted; the kernel may lower it (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;
/// How often and how long to try for the directory's lock.
const LOCK_TRIES: u32 = 200;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// A socket that is bound and listens, made before any thread starts.
#[derive(Debug)]
pub struct BoundListener {
    socket: OwnedFd,
    endpoint: Endpoint,
    /// Removes the file of a Unix socket.
    _file: Option<SocketFile>,
}

impl BoundListener {
    /// Binds `endpoint` and listens on it. Port 0 takes a free port.
    ///
    /// # Errors
    /// `NotConfigured`, naming the endpoint and the reason, when it cannot be bound: the address is
    /// not of this machine or taken, the directory is missing or not writable, somebody answers on
    /// the Unix socket, or the path is something else than a socket.
    pub fn bind(endpoint: &Endpoint) -> Result<Self, Error> {
        match endpoint {
            Endpoint::Tcp(_) => Self::bind_tcp(endpoint),
            Endpoint::Unix(path) => Self::bind_unix(path),
        }
        .map_err(|reason| Error::not_configured(format!("cannot listen on {endpoint}: {reason}")))
    }

    /// Where it listens, with the port that was taken.
    #[must_use]
    pub fn local_endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn bind_tcp(endpoint: &Endpoint) -> Result<Self, String> {
        let Endpoint::Tcp(addr) = endpoint else { unreachable!("only called for TCP") };
        let bound = || {
            let socket = stream_socket(endpoint)?;
            sockopt::set_socket_reuseaddr(&socket, true)?;
            net::bind(&socket, addr)?;
            net::listen(&socket, BACKLOG)?;
            let local = net::getsockname(&socket)?;
            Ok((socket, local))
        };
        let (socket, local) = bound().map_err(|e: Errno| match e {
            Errno::ADDRINUSE => format!(
                "port {} is in use; choose another one, or port 0 for a free one",
                addr.port()
            ),
            Errno::ADDRNOTAVAIL => format!("{} is not an address of this machine", addr.ip()),
            e => os_text(e),
        })?;
        let local = std::net::SocketAddr::try_from(local).map_err(os_text)?;
        Ok(Self { socket, endpoint: Endpoint::Tcp(local), _file: None })
    }

    fn bind_unix(path: &Path) -> Result<Self, String> {
        let addr = unix_addr(path)?;
        let endpoint = Endpoint::Unix(path.to_path_buf());
        let parent = match path.parent() {
            Some(parent) if path.is_absolute() => parent,
            _ => return Err("the path must be absolute and name a file".into()),
        };
        let _lock = DirectoryLock::take(parent)?;
        let socket = stream_socket(&endpoint).map_err(os_text)?;
        match net::bind(&socket, &addr) {
            Err(Errno::ADDRINUSE) => {
                remove_if_stale(path, &addr)?;
                net::bind(&socket, &addr)
            }
            result => result,
        }
        .map_err(|e| match e {
            Errno::NOENT => format!("the directory {} does not exist", parent.display()),
            e => os_text(e),
        })?;
        // From here on the file is ours, and goes when anything fails.
        let file = SocketFile::of(path).map_err(os_text)?;
        net::listen(&socket, BACKLOG).map_err(os_text)?;
        Ok(Self { socket, endpoint, _file: Some(file) })
    }
}

/// A non-blocking stream socket of the endpoint's family.
pub(super) fn stream_socket(endpoint: &Endpoint) -> Result<OwnedFd, Errno> {
    let family = match endpoint {
        Endpoint::Tcp(addr) if addr.is_ipv4() => AddressFamily::INET,
        Endpoint::Tcp(_) => AddressFamily::INET6,
        Endpoint::Unix(_) => AddressFamily::UNIX,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
    if family != AddressFamily::UNIX {
        sockopt::set_tcp_nodelay(&socket, true)?;
    }
    Ok(socket)
}

/// The address of a Unix socket.
pub(super) fn unix_addr(path: &Path) -> Result<SocketAddrUnix, String> {
    let len = path.as_os_str().len();
    if len > MAX_UNIX_PATH_BYTES {
        return Err(format!("the path has {len} bytes; at most {MAX_UNIX_PATH_BYTES} are allowed"));
    }
    SocketAddrUnix::new(path).map_err(os_text)
}

/// The operating system's words for an error.
pub(super) fn os_text(e: Errno) -> String {
    std::io::Error::from(e).to_string()
}

/// Removes the file at `path` when it is a socket on which nobody answers.
fn remove_if_stale(path: &Path, addr: &SocketAddrUnix) -> Result<(), String> {
    let stat = match rustix::fs::lstat(path) {
        Err(Errno::NOENT) => return Ok(()),
        result => result.map_err(os_text)?,
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err("the path exists and is not a socket; choose another path".into());
    }
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let probe = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    match net::connect(probe.map_err(os_text)?, addr) {
        Err(Errno::CONNREFUSED) => {}
        Err(Errno::NOENT) => return Ok(()),
        Ok(()) | Err(Errno::AGAIN | Errno::INPROGRESS) => {
            return Err("another process listens on it; stop it or choose another path".into());
        }
        Err(e) => {
            return Err(format!("a socket is there already, and probing it says: {}", os_text(e)));
        }
    }
    match rustix::fs::unlink(path) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(format!("the stale socket file cannot be removed: {}", os_text(e))),
    }
}

/// The file of a Unix socket that was bound here, removed when dropped if it is still the same.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    fn of(path: &Path) -> Result<Self, Errno> {
        let stat = rustix::fs::lstat(path)?;
        Ok(Self { path: path.to_path_buf(), device: stat.st_dev, inode: stat.st_ino })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let same = rustix::fs::lstat(&self.path)
            .is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (self.device, self.inode));
        if same {
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

/// An exclusive lock on a directory, against other listeners that bind in it. Gone with the
/// process at the latest.
struct DirectoryLock {
    _directory: Option<OwnedFd>,
}

impl DirectoryLock {
    #[allow(clippy::disallowed_methods)] // waits for another process, before any core exists
    fn take(path: &Path) -> Result<Self, String> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(directory) => directory,
            // A directory that may be written and not listed: go on without the lock.
            Err(Errno::ACCESS) => return Ok(Self { _directory: None }),
            Err(Errno::NOENT) => {
                return Err(format!("the directory {} does not exist", path.display()));
            }
            Err(e) => return Err(format!("directory {}: {}", path.display(), os_text(e))),
        };
        for _ in 0..LOCK_TRIES {
            match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { _directory: Some(directory) }),
                Err(Errno::WOULDBLOCK | Errno::INTR) => {}
                // The file system has no locks: go on without.
                Err(_) => return Ok(Self { _directory: None }),
            }
            let pause =
                rustix::time::Timespec { tv_sec: 0, tv_nsec: LOCK_PAUSE.subsec_nanos().into() };
            let _ = rustix::thread::nanosleep(&pause);
        }
        Err(format!(
            "another process holds a lock on the directory {} (seen for {:?})",
            path.display(),
            LOCK_PAUSE * LOCK_TRIES
        ))
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // several threads bind at once
mod tests {
    use super::*;
    use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

    fn refused(endpoint: &Endpoint) -> String {
        let e = BoundListener::bind(endpoint).unwrap_err();
        assert_eq!(e.kind(), crate::ErrorKind::NotConfigured);
        assert!(e.text().contains(&endpoint.to_string()), "{e}");
        assert!(!e.text().contains('\n'), "{e}");
        e.text().to_string()
    }

    #[test]
    fn a_tcp_listener_says_its_real_port_and_refuses_a_taken_one() {
        let first = BoundListener::bind(&"tcp://127.0.0.1:0".parse().unwrap()).unwrap();
        let Endpoint::Tcp(addr) = first.local_endpoint() else { panic!() };
        assert_ne!(addr.port(), 0);
        let text = refused(first.local_endpoint());
        assert!(text.contains(&format!("port {} is in use", addr.port())), "{text}");
        // A TEST-NET address.
        let text = refused(&"tcp://192.0.2.7:0".parse().unwrap());
        assert!(text.contains("192.0.2.7 is not an address of this machine"), "{text}");
    }

    #[test]
    fn a_stale_socket_file_is_replaced_and_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let endpoint = Endpoint::Unix(path.clone());
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "left behind");
        let listener = BoundListener::bind(&endpoint).unwrap();
        let text = refused(&endpoint);
        assert!(text.contains("another process listens on it"), "{text}");
        UnixStream::connect(&path).expect("it still listens");
        drop(listener);
        assert!(!path.exists(), "unlinked");
    }

    #[test]
    fn what_is_not_a_stream_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "precious").unwrap();
        let text = refused(&Endpoint::Unix(path.clone()));
        assert!(text.contains("is not a socket"), "{text}");
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        let path = dir.path().join("datagram");
        let _other = UnixDatagram::bind(&path).unwrap();
        refused(&Endpoint::Unix(path.clone()));
        assert!(path.exists());
    }

    #[test]
    fn bad_paths_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let text = refused(&Endpoint::Unix(dir.path().join("no/s")));
        assert!(text.contains("does not exist"), "{text}");
        let text = refused(&Endpoint::Unix(dir.path().join("x".repeat(120))));
        assert!(text.contains("at most 107"), "{text}");
        refused(&Endpoint::Unix(PathBuf::from("/")));
        refused(&Endpoint::Unix(PathBuf::from("relative")));
    }

    #[test]
    fn a_listener_does_not_remove_a_file_that_is_not_its_own_any_more() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = BoundListener::bind(&Endpoint::Unix(path.clone())).unwrap();
        std::fs::remove_file(&path).unwrap();
        let _other = UnixListener::bind(&path).unwrap();
        drop(listener);
        assert!(path.exists());
    }

    #[test]
    fn of_many_that_find_a_stale_file_exactly_one_gets_it() {
        let dir = tempfile::tempdir().unwrap();
        let endpoint = Endpoint::Unix(dir.path().join("s"));
        for _ in 0..20 {
            drop(UnixListener::bind(dir.path().join("s")).unwrap());
            let start = std::sync::Barrier::new(4);
            let listeners: Vec<_> = std::thread::scope(|scope| {
                let bind = || {
                    start.wait();
                    BoundListener::bind(&endpoint)
                };
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(bind)).collect();
                threads.into_iter().map(|t| t.join().unwrap()).collect()
            });
            assert_eq!(listeners.iter().filter(|l| l.is_ok()).count(), 1);
            UnixStream::connect(dir.path().join("s")).expect("and it answers");
        }
    }
}

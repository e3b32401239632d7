#![forbid(unsafe_code)]
//! Whether this process can have io_uring: by trying all that the driver rests on.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

use super::driver::Sizes;
use super::{Op, Outcome, Ring};
use crate::store::boottime;
use crate::transport::listen::os_text;

/// How long a byte may take through a pair of sockets.
const PATIENCE: Duration = Duration::from_secs(5);
const SIZES: Sizes = Sizes { submissions: 4, completions: 8, buffers: 4, buffer_bytes: 64 };

/// Sends a byte through a ring. In the error: why that cannot be, in a few words.
pub(super) fn probe() -> Result<(), String> {
    let mut ring = Ring::new(SIZES).map_err(|(call, e)| refusal(call, e))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (near, far) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|e| format!("the probe has no sockets: {}", os_text(e)))?;
    let near: Arc<OwnedFd> = Arc::new(near);
    ring.start(1, Op::Receive(near));
    ring.enter(None).map_err(|e| refusal("io_uring_enter", e))?;
    let mut got = Vec::new();
    let until = boottime() + PATIENCE;
    send(&far, b"!", SendFlags::NOSIGNAL)
        .map_err(|e| format!("the probe cannot send: {}", os_text(e)))?;
    while got.is_empty() && boottime() < until {
        ring.enter(Some(until)).map_err(|e| refusal("io_uring_enter", e))?;
        while let Some(completion) = ring.next() {
            match completion.outcome {
                Outcome::Received(filled) => ring.take_bytes(filled, &mut got),
                Outcome::Failed(e) => return Err(refusal("receiving", e)),
                Outcome::Accepted(_) | Outcome::Number(_) => {
                    return Err(refusal("receiving", Errno::OPNOTSUPP));
                }
            }
        }
    }
    if got != b"!" {
        return Err("a byte sent through it does not arrive".into());
    }
    Ok(())
}

/// One clause: what was refused, the kernel's words, the usual cause.
pub(super) fn refusal(call: &str, e: Errno) -> String {
    let cause = match e {
        Errno::PERM | Errno::ACCESS => {
            "; the usual causes are the seccomp profile of a container and kernel.io_uring_disabled"
        }
        Errno::NOSYS => "; this kernel was built without it, or a seccomp profile hides it",
        Errno::INVAL | Errno::OPNOTSUPP => "; Linux 6.1 or later is needed",
        Errno::NOMEM => "; the usual cause is a low limit on locked memory (ulimit -l)",
        Errno::MFILE | Errno::NFILE => "; the limit on open descriptors is reached (ulimit -n)",
        _ => "",
    };
    format!("{call}: {}{cause}", os_text(e))
}

#![forbid(unsafe_code)]
//! Which driver a node asks for.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// The kernel interface that moves a node's bytes.
///
/// ```
/// use homing::DriverKind;
/// assert_eq!("epoll".parse::<DriverKind>()?, DriverKind::Epoll);
/// assert_eq!(DriverKind::default(), DriverKind::Auto);
/// assert_eq!(DriverKind::Uring.to_string(), "uring");
/// # Ok::<(), homing::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum DriverKind {
    /// io_uring where the kernel lets this process have it (it is tried at start, as a whole), else
    /// epoll; then one line of the log says why.
    #[default]
    Auto,
    /// io_uring (Linux 6.1 or later); a node that cannot have it does not start. Many container
    /// runtimes forbid it.
    Uring,
    /// epoll: works on every Linux.
    Epoll,
}

impl DriverKind {
    fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Uring => "uring",
            Self::Epoll => "epoll",
        }
    }
}

impl fmt::Display for DriverKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DriverKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        [Self::Auto, Self::Uring, Self::Epoll]
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| {
                Error::not_configured(format!("driver {text:?} is none of auto, uring, epoll"))
            })
    }
}

#![forbid(unsafe_code)]
//! Where a stream's bytes can be changed on their way.
//!
//! Every byte a driver moves passes its stream's filter: outgoing bytes once, before they are
//! queued, so that what is queued, counted and handed over is what goes to the kernel; incoming
//! bytes once, before they are reported. A filter travels with its stream from core to core.

/// The filter of one stream.
#[derive(Debug, Default)]
pub(super) enum Filter {
    /// Bytes pass as they are.
    #[default]
    Plain,
}

impl Filter {
    /// Whether incoming bytes pass as they are, so that they need not be shown to it.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self, Self::Plain)
    }

    /// Turns what the node wrote into what goes to the kernel.
    pub(super) fn outgoing(&mut self, _bytes: &mut Vec<u8>) {
        match self {
            Self::Plain => {}
        }
    }

    /// Turns what the kernel gave into what the node is told; nothing is told when none is left.
    /// What the filter has to say to its peer itself goes to `answer`.
    ///
    /// # Errors
    /// The peer broke the filter's rules, in one sentence; the stream is closed.
    pub(super) fn incoming(
        &mut self,
        _bytes: &mut Vec<u8>,
        _answer: &mut Vec<u8>,
    ) -> Result<(), String> {
        match self {
            Self::Plain => Ok(()),
        }
    }
}

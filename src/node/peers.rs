#![forbid(unsafe_code)]
//! The configured endpoints of a running node (R2.3-3).

use std::sync::Arc;

use super::Shared;
use super::oneshot::oneshot;
use super::operation::{ConfiguredPeer, Mail, PeerChange, PeerWish};
use super::settings::check_peer_endpoint;
use crate::env::Endpoint;
use crate::error::{Error, Result};

/// The endpoints a node was told to keep connected: by [`NodeBuilder::peer`](super::NodeBuilder::peer)
/// and by what is called here.
///
/// Each is a wish to connect and proves nothing (R2.3-1): no message takes its way because of it,
/// and nothing is placed there. The endpoint is its name; it stands once.
///
/// ```
/// use homing::prelude::*;
/// use homing::store::memory::MemoryStore;
///
/// let node = Node::builder("game").peer("tcp://127.0.0.1:7001").store(MemoryStore::new()).start()?;
/// homing::block_on(async {
///     // That node has moved. When this is done, nothing of the old connection is left.
///     node.peers().replace("tcp://127.0.0.1:7001", "tcp://127.0.0.1:7002").await?;
///     node.peers().add("unix:///run/game/b.sock").await?;
///     node.peers().remove("unix:///run/game/b.sock").await?;
///     let peers = node.peers().list().await?;
///     assert_eq!(peers.len(), 1);
///     assert_eq!(peers[0].endpoint.to_string(), "tcp://127.0.0.1:7002");
///     let error = node.peers().remove("tcp://127.0.0.1:7001").await.unwrap_err();
///     assert_eq!(error.kind(), ErrorKind::NotFound);
///     Ok::<(), homing::Error>(())
/// })?;
/// # Ok::<(), homing::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct PeerEndpoints<'a> {
    pub(super) shared: &'a Arc<Shared>,
}

impl PeerEndpoints<'_> {
    /// Adds an endpoint to keep connected. Done when it is taken in; the dial goes on.
    ///
    /// Cancel safety: a call that was polled once is carried out.
    ///
    /// # Errors
    /// `AlreadyExists` when it is configured; `NotConfigured` when the endpoint is malformed, names no
    /// place that can be dialled, is this node's own, or is not local and the node has no mesh secret
    /// (R2.3-5); `ShuttingDown`.
    pub async fn add(&self, endpoint: &str) -> Result<()> {
        self.change(PeerWish::Add(self.check(endpoint)?)).await
    }

    /// Points a configured endpoint elsewhere. The connection that was made for `old` is closed
    /// first, and done is when that was seen: from here on `new` is dialled, and nothing that still
    /// comes of the old connection changes anything (R2.3-3). Operations under way on the old
    /// connection end as on any lost link. A link to the same node that was made another way (it
    /// dialled, or an operation needed it) stays.
    ///
    /// Of several calls for one endpoint before the old connection is closed, the last decides where
    /// it points; all of them are done then.
    ///
    /// Cancel safety: as [`PeerEndpoints::add`].
    ///
    /// # Errors
    /// `NotFound` when `old` is not configured; else as [`PeerEndpoints::add`] for `new`.
    pub async fn replace(&self, old: &str, new: &str) -> Result<()> {
        let (old, new) = (parse(old)?, self.check(new)?);
        self.change(PeerWish::Replace { old, new }).await
    }

    /// Ends a configured endpoint, and the connection that was made for it. Done when that was seen
    /// closed. A link to the same node that was made another way stays.
    ///
    /// Cancel safety: as [`PeerEndpoints::add`].
    ///
    /// # Errors
    /// `NotFound` when it is not configured; `NotConfigured` when it is malformed; `ShuttingDown`.
    pub async fn remove(&self, endpoint: &str) -> Result<()> {
        self.change(PeerWish::Remove(parse(endpoint)?)).await
    }

    /// All configured endpoints in the order in which they were added, each with who is there and how
    /// far it is.
    ///
    /// # Errors
    /// `ShuttingDown` when the node has stopped.
    pub async fn list(&self) -> Result<Vec<ConfiguredPeer>> {
        let (slot, taken) = oneshot();
        self.shared.poster.post(0, Mail::ListPeers { slot });
        taken.await
    }

    fn check(&self, endpoint: &str) -> Result<Endpoint> {
        let endpoint = parse(endpoint)?;
        check_peer_endpoint(&endpoint, self.shared.settings.secret.as_ref())?;
        if endpoint == self.shared.identity.endpoint {
            return Err(Error::not_configured(format!(
                "peer {endpoint} is this node's own endpoint; a node needs no link to itself"
            )));
        }
        Ok(endpoint)
    }

    async fn change(&self, wish: PeerWish) -> Result<()> {
        let (slot, taken) = oneshot();
        self.shared.poster.post(0, Mail::ChangePeer(Box::new(PeerChange { wish, slot })));
        taken.await
    }
}

fn parse(endpoint: &str) -> Result<Endpoint> {
    endpoint.parse().map_err(|e: Error| Error::not_configured(format!("peer: {}", e.text())))
}

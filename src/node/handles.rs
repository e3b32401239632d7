#![forbid(unsafe_code)]
//! What application threads hold: addresses of objects and operations on their way.
//!
//! The futures here belong to no runtime: they are settled by a core and wake whatever polls
//! them. Each has a blocking form, `wait()`. None of them may be waited for with `wait()` inside a
//! turn: that would block the core that has to settle it.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::Shared;
use super::oneshot::{Abandoned, Settler, Taken, block_on, oneshot};
use super::operation::{
    Body, CreateCall, CreateOutcome, CreateWaiter, End, Mail, Operation, Waiter,
};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{ActorId, ActorRef, NodeRid, ObjectKey};
use crate::object::{Actor, Content, IntoPayload, Metadata, Packet};
use crate::route::Resolution;
use crate::time::Nanos;

/// An Actor as application threads address it: by id alone (R2.1-1).
///
/// Cheap to make and to clone; making one looks nothing up.
///
/// ```no_run
/// # use homing::prelude::*;
/// # use std::time::Duration;
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Add(i64);
/// # impl Message for Add { const NAME: &'static str = "counter.add"; type Reply = i64; }
/// # async fn demo(node: &Node) -> Result<()> {
/// let counter = node.actor("counter-42");
/// counter.send(Add(1)).await?;
/// let total = counter.request(Add(1)).timeout(Duration::from_millis(50)).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct ActorHandle {
    shared: Arc<Shared>,
    /// A bad id is told by each call, so that making a handle cannot fail.
    key: Result<ObjectKey>,
    metadata: Metadata,
}

impl ActorHandle {
    pub(crate) fn new(shared: Arc<Shared>, id: &str) -> Self {
        let key = ActorId::new(id).map(|id| shared.actor_key(&id));
        Self { shared, key, metadata: Metadata::default() }
    }

    /// The same Actor, with metadata for what is sent through this value.
    #[must_use]
    pub fn with_metadata(mut self, metadata: Metadata) -> Self {
        self.metadata = metadata;
        self
    }

    /// Sends one way. The message is submitted at once; awaiting gives local admission (resolved,
    /// credit taken, in the lane or the queue) or its error, at the latest after the send timeout.
    ///
    /// Cancel safety: dropping the future takes nothing back.
    ///
    /// # Errors
    /// `NotFound`, `Unavailable`, `DeadlineExceeded` (no credit or no answer of the Store in time),
    /// `ShuttingDown`, `InvalidOperation` (bad id, or a payload that fits no frame).
    pub fn send<P: Packet>(&self, message: P) -> Sending {
        let ticket = self.shared.ticket();
        let timeout = self.shared.settings.send_timeout;
        Sending { taken: self.submit(message.into_content(), false, timeout, ticket) }
    }

    /// Asks for a reply. Submitted when it is first awaited.
    ///
    /// Cancel safety: dropping the future gives the request up; whether it ran is not known.
    ///
    /// # Errors
    /// As [`ActorHandle::send`], and whatever the handler answers.
    pub fn request<P: Packet>(&self, message: P) -> Request<P> {
        Request {
            actor: self.clone(),
            content: message.into_content(),
            timeout: self.shared.settings.request_timeout,
            of: PhantomData,
        }
    }

    fn submit(
        &self,
        content: Result<Content>,
        is_request: bool,
        timeout: Duration,
        ticket: u64,
    ) -> Taken<End> {
        let (settler, taken) = oneshot();
        match self.key.clone().and_then(|key| Ok((key, content?))) {
            Err(e) => {
                settler.settle(Err(e));
            }
            Ok((key, content)) => {
                let body = Body::Message { content, metadata: self.metadata.clone(), is_request };
                self.shared.submit(key, body, Waiter::App(settler), timeout, ticket);
            }
        }
        taken
    }
}

/// A one-way message on its way. Awaiting it gives local admission.
///
/// See [`ActorHandle`] for an example.
#[must_use = "await it for local admission, or call detach()"]
pub struct Sending {
    taken: Taken<End>,
}

impl Sending {
    /// Asks for nothing back. A later failure is counted.
    pub fn detach(self) {}

    /// Waits on this thread.
    ///
    /// # Errors
    /// As [`ActorHandle::send`].
    pub fn wait(self) -> Result<()> {
        block_on(self)
    }
}

impl Future for Sending {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.taken).poll(cx).map(|end| end.map(|_| ()))
    }
}

/// A request that has not been submitted yet.
///
/// See [`ActorHandle`] for an example.
#[must_use = "a request is submitted when it is awaited"]
pub struct Request<P> {
    actor: ActorHandle,
    content: Result<Content>,
    timeout: Duration,
    of: PhantomData<fn(P)>,
}

impl<P: Packet> Request<P> {
    /// How long to wait for the reply, counted from when the request is submitted.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Submits and waits on this thread.
    ///
    /// # Errors
    /// As [`ActorHandle::request`].
    pub fn wait(self) -> Result<P::Reply> {
        block_on(self)
    }
}

impl<P: Packet> IntoFuture for Request<P> {
    type Output = Result<P::Reply>;
    type IntoFuture = Requesting<P>;

    fn into_future(self) -> Requesting<P> {
        let ticket = self.actor.shared.ticket();
        let taken = self.actor.submit(self.content, true, self.timeout, ticket);
        Requesting { taken, actor: self.actor, ticket, of: PhantomData }
    }
}

/// A request on its way.
///
/// See [`ActorHandle`] for an example.
pub struct Requesting<P> {
    taken: Taken<End>,
    actor: ActorHandle,
    ticket: u64,
    of: PhantomData<fn(P)>,
}

impl<P: Packet> Future for Requesting<P> {
    type Output = Result<P::Reply>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.taken).poll(cx).map(|end| match end? {
            Some(content) => P::reply_from_content(content),
            None => Err(Error::new(ErrorKind::ProtocolError, "the reply has no payload")),
        })
    }
}

impl<P> Drop for Requesting<P> {
    fn drop(&mut self) {
        if self.taken.is_settled() {
            return;
        }
        if let Ok(key) = &self.actor.key {
            self.actor
                .shared
                .post_home(key, Mail::Cancel { key: key.clone(), ticket: self.ticket });
        }
    }
}

/// Lifecycle of Actors: create, find, destroy.
///
/// ```no_run
/// # use homing::prelude::*;
/// # struct Counter; impl Actor for Counter { const TYPE: &'static str = "counter";
/// #   async fn create(_: &CreateContext, _: Payload) -> Result<Self> { Ok(Counter) } }
/// # async fn demo(node: &Node) -> Result<()> {
/// node.actors().create::<Counter>("counter-42", ()).await?;
/// if let Some(actor_ref) = node.actors().find("counter-42").await? {
///     node.actors().destroy(&actor_ref).await?;
/// }
/// # Ok(()) }
/// ```
pub struct Actors<'a> {
    pub(crate) shared: &'a Arc<Shared>,
}

impl Actors<'_> {
    /// Creates an Actor of type `A`, or finds it. However many nodes create the same id at the same
    /// time, the factory runs once and everyone learns its result.
    ///
    /// It lives on this node when it hosts the type, else on a node that does;
    /// [`Creating::on`] names one.
    pub fn create<A: Actor>(&self, id: impl AsRef<str>, request: impl IntoPayload) -> Creating {
        self.create_type(A::TYPE, id, request)
    }

    /// As [`Actors::create`], for a type that this program does not know as a Rust type.
    pub fn create_type(
        &self,
        type_name: &str,
        id: impl AsRef<str>,
        request: impl IntoPayload,
    ) -> Creating {
        let call = ActorId::new(id).and_then(|id| {
            Ok(CreateCall {
                key: self.shared.actor_key(&id),
                type_name: check_type_name(type_name)?,
                request: request.into_payload()?,
                target: None,
                timeout: self.shared.settings.create_timeout,
                waiter: CreateWaiter::App(oneshot().0),
            })
        });
        Creating { shared: self.shared.clone(), call }
    }

    /// Looks an Actor up in the Location Store.
    ///
    /// # Errors
    /// `Unavailable` when the Store does not answer; `InvalidOperation` for a bad id.
    pub async fn find(&self, id: impl AsRef<str>) -> Result<Option<ActorRef>> {
        let key = self.shared.actor_key(&ActorId::new(id)?);
        let timeout = self.shared.settings.request_timeout;
        self.shared.ask(&key, |slot| Mail::Find { key: key.clone(), timeout, slot }).await
    }

    /// Ends exactly this incarnation (R2.6-2): what is queued ends with an error, `on_closing`
    /// runs, then the id is Missing.
    ///
    /// # Errors
    /// `NotFound` when no such Actor stands, `InvalidOperation` when another incarnation does,
    /// `Unavailable` when its owner cannot be reached or the Store does not answer.
    pub async fn destroy(&self, actor_ref: &ActorRef) -> Result<()> {
        let key = self.shared.actor_key(&actor_ref.id);
        let (settler, taken) = oneshot();
        self.shared.submit(
            key,
            Body::Destroy { generation: actor_ref.generation },
            Waiter::App(settler),
            self.shared.settings.request_timeout,
            0,
        );
        taken.await.map(|_| ())
    }
}

fn check_type_name(name: &str) -> Result<String> {
    if name.is_empty() || name.len() > crate::limits::MAX_ID_BYTES || name.contains('\0') {
        return Err(Error::invalid(format!(
            "actor type name {name:?} has {} bytes; it must have 1 to 255 bytes and no NUL",
            name.len()
        )));
    }
    Ok(name.to_owned())
}

/// A creation that has not been submitted yet.
///
/// See [`Actors`] for an example.
#[must_use = "a creation is submitted when it is awaited"]
pub struct Creating {
    shared: Arc<Shared>,
    call: Result<CreateCall>,
}

impl Creating {
    /// Names the node on which the Actor shall live.
    pub fn on(mut self, rid: &NodeRid) -> Self {
        if let Ok(call) = &mut self.call {
            call.target = Some(rid.clone());
        }
        self
    }

    /// How long the caller waits; the node's create timeout otherwise. A creation that has begun
    /// goes on to its end.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        if let Ok(call) = &mut self.call {
            call.timeout = timeout;
        }
        self
    }

    /// Submits and waits on this thread.
    ///
    /// # Errors
    /// `TypeMismatch` when the Actor exists with another type, `NotConfigured` when the named node
    /// does not host the type, `Unavailable` when no node does or the Store does not answer,
    /// `InternalFailure` when the factory failed, `DeadlineExceeded`, `ShuttingDown`,
    /// `InvalidOperation` for a bad id or type name.
    pub fn wait(self) -> Result<CreateOutcome> {
        block_on(self)
    }
}

impl IntoFuture for Creating {
    type Output = Result<CreateOutcome>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<CreateOutcome>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let mut call = self.call?;
            let (settler, taken) = oneshot();
            call.waiter = CreateWaiter::App(settler);
            let key = call.key.clone();
            self.shared.post_home(&key, Mail::Create(Box::new(call)));
            taken.await
        })
    }
}

/// Looks routes up, as messages do (R2.2b-1).
///
/// ```no_run
/// # use homing::prelude::*;
/// # async fn demo(node: &Node) {
/// match node.resolver().actor("counter-42").await {
///     Resolution::ReadyRoute(route) => println!("at {}", route.rid),
///     Resolution::Missing => println!("no such actor"),
///     Resolution::Unavailable => println!("its owner cannot be used"),
///     Resolution::StoreFailure(e) => println!("not known: {e}"),
/// }
/// # }
/// ```
pub struct Resolver<'a> {
    pub(crate) shared: &'a Arc<Shared>,
}

impl Resolver<'_> {
    /// The route of an Actor, from the cache or the Store. A bad id is `Missing`: nothing can
    /// stand under it.
    pub async fn actor(&self, id: impl AsRef<str>) -> Resolution {
        let Ok(id) = ActorId::new(id) else { return Resolution::Missing };
        let key = self.shared.actor_key(&id);
        let timeout = self.shared.settings.request_timeout;
        self.shared.ask(&key, |slot| Mail::Resolve { key: key.clone(), timeout, slot }).await
    }
}

impl Shared {
    /// Posts an operation to the home core of its key.
    pub(crate) fn submit(
        &self,
        key: ObjectKey,
        body: Body,
        waiter: Waiter,
        timeout: Duration,
        ticket: u64,
    ) {
        let home = self.home_core(&key);
        let operation =
            Operation { key, body, waiter, timeout, deadline: Nanos::MAX, ticket, source: None };
        self.poster.post(home, Mail::Submit(operation));
    }

    pub(crate) fn post_home(&self, key: &ObjectKey, mail: Mail) {
        self.poster.post(self.home_core(key), mail);
    }

    /// Posts a question to the home core of `key` and waits for its answer.
    async fn ask<T: Abandoned>(&self, key: &ObjectKey, mail: impl FnOnce(Settler<T>) -> Mail) -> T {
        let (settler, taken) = oneshot();
        self.post_home(key, mail(settler));
        taken.await
    }
}

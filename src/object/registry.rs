#![forbid(unsafe_code)]
//! The types a node hosts, with their handlers erased to functions over boxed bodies.

use std::any::Any;
use std::rc::Rc;
use std::sync::Arc;

use super::actor::{Actor, CreateContext, Handler, PreserveState};
use super::content::Content;
use super::context::{Context, Outbox, TurnFacts};
use super::message::{Message, Packet};
use super::payload::Payload;
use crate::error::{Error, ErrorKind, Result};
use crate::exec::cell::{Blocks, TaskCell};
use crate::ids::FixedMap;
use crate::limits::MAX_ID_BYTES;

/// An object's own state.
pub(crate) type Body = Box<dyn Any + Send>;

/// A future of an object, in its cell. It stays on its core.
pub(crate) type CellFuture = TaskCell<CellOutput>;

/// What the futures of an object come to.
pub(crate) enum CellOutput {
    /// A handler's: the body back, and the reply or the error.
    Turn { body: Body, reply: Result<Content> },
    /// A factory's.
    Made(Result<Body>),
    /// `on_closing`'s; the body is gone.
    Closed,
}

/// What a turn is started with.
pub(crate) struct TurnInput {
    pub(crate) content: Content,
    pub(crate) facts: TurnFacts,
    pub(crate) outbox: Rc<Outbox>,
    pub(crate) reply_as: ReplyAs,
}

/// In which form the end of a turn gives its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyAs {
    /// In none: nobody is told.
    Nothing,
    /// As it is, for a caller of this node.
    Value,
    /// Encoded.
    Bytes,
}

pub(crate) type HandleFn = fn(&mut Blocks, Body, TurnInput) -> CellFuture;
pub(crate) type CreateFn = fn(&mut Blocks, CreateContext, Payload) -> CellFuture;
type CloseFn = fn(&mut Blocks, Body) -> CellFuture;

/// A hosted type with everything that knows its Rust type erased.
pub(crate) struct ErasedType {
    pub(crate) name: &'static str,
    pub(crate) create: CreateFn,
    pub(crate) close: CloseFn,
    handlers: FixedMap<&'static str, HandleFn>,
    fallback: Option<HandleFn>,
}

impl ErasedType {
    /// The handler for packets of `name`.
    pub(crate) fn handler(&self, name: &str) -> Option<HandleFn> {
        self.handlers.get(name).copied().or(self.fallback)
    }
}

/// Names what an Actor type handles; given to the closure of
/// [`NodeBuilder::actor`](crate::NodeBuilder::actor).
///
/// ```no_run
/// # use homing::prelude::*;
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Add(i64);
/// # impl Message for Add { const NAME: &'static str = "counter.add"; type Reply = i64; }
/// # #[derive(Default)] struct Counter { total: i64 }
/// # impl Actor for Counter {
/// #     const TYPE: &'static str = "counter";
/// #     async fn create(_: &CreateContext, _: Payload) -> Result<Self> { Ok(Self::default()) }
/// # }
/// # impl Handler<Add> for Counter {
/// #     async fn handle(&mut self, add: Add, _: &mut Context<'_, Self>) -> Result<i64> { Ok(add.0) }
/// # }
/// let node = Node::builder("game").actor::<Counter>(|a| a.handles::<Add>()).start()?;
/// # Ok::<(), homing::Error>(())
/// ```
pub struct ActorType<A> {
    erased: ErasedType,
    errors: Vec<Error>,
    of: std::marker::PhantomData<fn(A)>,
}

impl<A: Actor> ActorType<A> {
    pub(crate) fn new() -> Self {
        Self {
            erased: ErasedType {
                name: A::TYPE,
                create: |blocks, cx, request| {
                    blocks.put(async move {
                        let made = A::create(&cx, request).await;
                        CellOutput::Made(made.map(|body| Box::new(body) as Body))
                    })
                },
                close: |blocks, body| {
                    blocks.put(async move {
                        if let Ok(mut object) = body.downcast::<A>() {
                            object.on_closing().await;
                        }
                        CellOutput::Closed
                    })
                },
                handlers: FixedMap::default(),
                fallback: None,
            },
            errors: Vec::new(),
            of: std::marker::PhantomData,
        }
    }

    /// Handles the typed message `M` under its name.
    #[must_use]
    pub fn handles<M: Message>(self) -> Self
    where
        A: Handler<M>,
    {
        self.with_handler(M::NAME, erase::<A, M>())
    }

    /// Handles raw payloads of this packet name.
    #[must_use]
    pub fn handles_packet(self, name: &'static str) -> Self
    where
        A: Handler<Payload>,
    {
        self.with_handler(name, erase::<A, Payload>())
    }

    /// Handles every packet that has no handler of its own, raw.
    #[must_use]
    pub fn handles_any_packet(mut self) -> Self
    where
        A: Handler<Payload>,
    {
        self.erased.fallback = Some(erase::<A, Payload>());
        self
    }

    /// States that the object's state travels when it moves.
    #[must_use]
    pub fn preserve_state(self) -> Self
    where
        A: PreserveState,
    {
        self
    }

    fn with_handler(mut self, name: &'static str, handler: HandleFn) -> Self {
        if name.is_empty() || name.len() > MAX_ID_BYTES || name.contains('\0') {
            self.errors.push(Error::not_configured(format!(
                "actor type {:?} handles packet {name:?} of {} bytes; a packet name has 1 to \
                 {MAX_ID_BYTES} bytes and no NUL",
                A::TYPE,
                name.len()
            )));
        } else if self.erased.handlers.insert(name, handler).is_some() {
            self.errors.push(Error::not_configured(format!(
                "actor type {:?} handles packet {name:?} twice; one handler per name",
                A::TYPE
            )));
        }
        self
    }
}

/// Makes the erased function of one handler: decode, take the body, run, give the body back.
fn erase<A: Handler<P>, P: Packet>() -> HandleFn {
    |blocks, body, input| {
        blocks.put(async move {
            let TurnInput { content, facts, outbox, reply_as } = input;
            let mut object = match body.downcast::<A>() {
                Ok(object) => object,
                Err(body) => {
                    let reply = Err(Error::internal("the object is of another type"));
                    return CellOutput::Turn { body, reply };
                }
            };
            let reply = match P::from_content(content) {
                Err(e) => Err(Error::new(ErrorKind::ProtocolError, e.text())),
                Ok(message) => {
                    let mut cx = Context::new(&facts, &outbox);
                    match object.handle(message, &mut cx).await {
                        Err(e) => Err(e),
                        Ok(reply) => match reply_as {
                            ReplyAs::Nothing => Ok(Content::Bytes(Payload::empty())),
                            ReplyAs::Value => P::reply_into_content(reply),
                            ReplyAs::Bytes => P::reply_into_packet(reply).map(Content::Bytes),
                        },
                    }
                }
            };
            CellOutput::Turn { body: object, reply }
        })
    }
}

/// All types of a node, by name.
#[derive(Default)]
pub(crate) struct Registry {
    types: FixedMap<&'static str, Arc<ErasedType>>,
}

impl Registry {
    /// Adds a type; the sentences of what is wrong with it otherwise.
    pub(crate) fn add<A: Actor>(&mut self, ty: ActorType<A>) -> Vec<Error> {
        let mut errors = ty.errors;
        if A::TYPE.is_empty() || A::TYPE.len() > MAX_ID_BYTES || A::TYPE.contains('\0') {
            errors.push(Error::not_configured(format!(
                "actor type name {:?} has {} bytes; it must have 1 to {MAX_ID_BYTES} bytes and no NUL",
                A::TYPE,
                A::TYPE.len()
            )));
        } else if self.types.insert(A::TYPE, Arc::new(ty.erased)).is_some() {
            errors.push(Error::not_configured(format!(
                "actor type {:?} is registered twice; one registration per type",
                A::TYPE
            )));
        }
        errors
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Arc<ErasedType>> {
        self.types.get(name)
    }

    /// The names, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.types.keys().map(|n| (*n).to_owned()).collect();
        names.sort_unstable();
        names
    }
}

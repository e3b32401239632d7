#![forbid(unsafe_code)]
//! placeholder
use super::Core;
use crate::env::{Env, StoreAnswer};
use crate::error::{Error, Result};
use crate::ids::{ObjectGeneration, ObjectKey};
use crate::node::operation::{CreateCall, Mail, ReplyTo};
use crate::object::{Body, Payload};
use crate::wire::{ActorCreate, CreateTail};
pub(super) struct Asked;
pub(super) struct StoreStep;
#[derive(Default)]
pub(super) struct Creations;
impl Creations {
    pub(super) fn is_empty(&self) -> bool {
        true
    }
}
impl<E: Env<Mail = Mail>> Core<E> {
    pub(super) fn on_create(&mut self, _env: &mut E, _call: CreateCall) {}
    pub(super) fn on_remote_create(
        &mut self,
        _env: &mut E,
        _key: ObjectKey,
        _create: &ActorCreate<'_>,
        _request: Payload,
        _t: std::time::Duration,
        _to: ReplyTo,
    ) {
    }
    pub(super) fn on_create_reply(
        &mut self,
        _env: &mut E,
        _key: &ObjectKey,
        _asked: Asked,
        _tail: Result<CreateTail<'_>>,
        _p: Option<Payload>,
    ) {
    }
    pub(super) fn on_creation_store(&mut self, _env: &mut E, _s: StoreStep, _a: StoreAnswer) {}
    pub(super) fn on_generations(&mut self, _env: &mut E) {}
    pub(super) fn tick_creation(&mut self, _env: &mut E, _key: &ObjectKey) {}
    pub(super) fn fail_creations(&mut self, _env: &mut E, _e: &Error) {}
    pub(super) fn destroy_here(
        &mut self,
        _env: &mut E,
        _index: usize,
        _g: ObjectGeneration,
        _to: ReplyTo,
    ) {
    }
    pub(super) fn on_factory_made(&mut self, _env: &mut E, _key: &ObjectKey, _made: Result<Body>) {}
    pub(super) fn on_closed(&mut self, _env: &mut E, _index: usize) {}
    pub(super) fn close_after_panic(&mut self, _env: &mut E, _index: usize) {}
}

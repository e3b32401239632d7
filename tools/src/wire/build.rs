#![forbid(unsafe_code)]
//! Frames and records from their JSON: the way back of `show`.

use homing::ids::{
    AuthorityOwnerGeneration, BindingGeneration, Correlation, NodeGeneration, ObjectGeneration,
    ObjectKind, OperationId, OwnerLeaseGeneration, RelocationId,
};
use homing::limits::{MAX_CORES, MAX_FOLLOW_HOPS, MAX_LANES, MAX_MAX_FRAME_BYTES};
use homing::limits::{MAX_METADATA_BYTES, MIN_MAX_FRAME_BYTES};
use homing::wire::{
    ActorCreate, ActorDestroy, ActorSource, Admit, BindState, BoundSession, Command,
    CoordinatorFence, CreateMode, CreditEntry, FailureCode, Hello, LaneAttach, LeaseRenewed,
    LinkGrant, Liveness, MessageFollow, MessageForm, ObjectMessage, Origin, Record, Reject,
    RejectReason, RelocationRole, RelocationRoute, RelocationSeal, RelocationSealed, Reply,
    RouteAction, RouteFenceRef, Rule, SessionBind, SessionOwnerFence, SessionSequence, Status,
    Terminal, Update,
};

use super::fields::{Fields, Wrong, named};

type Built<T> = Result<T, Wrong>;

/// The entries of a metadata part.
pub(super) fn metadata<'j>(f: &Fields<'j>) -> Built<Vec<(&'j str, &'j [u8])>> {
    let mut seen = Vec::new();
    for entry in f.list("metadata")? {
        let (key, value) = (entry.text("key")?, entry.bytes("value")?);
        if seen.iter().any(|(other, _)| *other == key) {
            return Err(entry.wrong("key", named(Rule::MetadataDuplicateKey)));
        }
        if value.len() > MAX_METADATA_BYTES {
            return Err(entry.wrong("value", named(Rule::MetadataTooLarge)));
        }
        seen.push((key, value));
    }
    Ok(seen)
}

/// The origin part of a frame.
pub(super) fn origin<'j>(f: &Fields<'j>) -> Built<Origin<'j>> {
    Ok(Origin {
        rid: f.rid("rid")?,
        node_generation: node_generation(f)?,
        reply_route: f.opt_fence("reply_route", Correlation::new)?,
    })
}

/// A record of the service wire.
pub(super) fn record<'j>(f: &Fields<'j>) -> Built<Record<'j>> {
    let number = f.number("command")?;
    let command = Command::of(number).map_err(|rule| f.wrong("command", named(rule)))?;
    Ok(match command {
        Command::Hello => Record::Hello(hello(f)?),
        Command::Admit => Record::Admit(admit(f)?),
        Command::Reject => Record::Reject(reject(f)?),
        Command::Update => Record::Update(update(f)?),
        Command::LivenessProbe => Record::LivenessProbe(Liveness { probe_id: probe_id(f)? }),
        Command::LivenessAck => Record::LivenessAck(Liveness { probe_id: probe_id(f)? }),
        Command::Reply => Record::Reply(reply(f)?),
        Command::SpotSend | Command::SpotRequest | Command::ActorSend | Command::ActorRequest => {
            Record::Message(message(f, command)?)
        }
        Command::ActorDestroy => Record::ActorDestroy(ActorDestroy {
            correlation: correlation(f)?,
            id: f.text("id")?,
            fence: fence(&f.object("fence")?)?,
        }),
        Command::BoundSessionBind => Record::SessionBind(session_bind(f)?),
        Command::SessionRelocationSeal => Record::RelocationSeal(relocation_seal(f)?),
        Command::SessionRelocationSealed => Record::RelocationSealed(relocation_sealed(f)?),
        Command::SessionRelocationRoute => Record::RelocationRoute(relocation_route(f)?),
        Command::ActorCreate => Record::ActorCreate(actor_create(f)?),
        Command::MessageFollow => Record::MessageFollow(message_follow(f)?),
    })
}

fn correlation(f: &Fields<'_>) -> Built<Correlation> {
    f.fence("correlation", Correlation::new)
}

fn node_generation(f: &Fields<'_>) -> Built<NodeGeneration> {
    f.fence("node_generation", NodeGeneration::new)
}

fn owner_lease_generation(f: &Fields<'_>) -> Built<OwnerLeaseGeneration> {
    f.fence("owner_lease_generation", OwnerLeaseGeneration::new)
}

fn probe_id(f: &Fields<'_>) -> Built<u64> {
    f.choice("probe_id", |n: u64| (n != 0).then_some(n), Rule::ProbeIdZero)
}

fn link_id(f: &Fields<'_>) -> Built<u64> {
    match f.hex64("link_id")? {
        0 => Err(f.wrong("link_id", named(Rule::LinkIdZero))),
        id => Ok(id),
    }
}

fn fence<'j>(f: &Fields<'j>) -> Built<RouteFenceRef<'j>> {
    Ok(RouteFenceRef {
        object_generation: f.fence("object_generation", ObjectGeneration::new)?,
        rid: f.rid("rid")?,
        node_generation: node_generation(f)?,
        authority_owner_generation: owner(f, "authority_owner_generation")?,
        owner_lease_generation: owner_lease_generation(f)?,
    })
}

fn owner(f: &Fields<'_>, name: &str) -> Built<AuthorityOwnerGeneration> {
    f.fence(name, AuthorityOwnerGeneration::new)
}

fn hello<'j>(f: &Fields<'j>) -> Built<Hello<'j>> {
    let cores = |n| (1..=MAX_CORES).contains(&n).then_some(n);
    let frame = |n| (MIN_MAX_FRAME_BYTES..=MAX_MAX_FRAME_BYTES).contains(&n).then_some(n);
    let window = |n: u32| (n > 0).then_some(n);
    Ok(Hello {
        protocol_version: f.number("protocol_version")?,
        mesh: f.text("mesh")?,
        rid: f.rid("rid")?,
        node_generation: node_generation(f)?,
        owner_lease_generation: owner_lease_generation(f)?,
        key_id: f.array("key_id")?,
        nonce: f.array("nonce")?,
        cores: f.choice("cores", cores, Rule::CoreCount)?,
        max_frame_bytes: f.choice("max_frame_bytes", frame, Rule::MaxFrameRange)?,
        lane_window_bytes: f.choice("lane_window_bytes", window, Rule::LaneWindow)?,
        hash_seed_check: f.hex64("hash_seed_check")?,
        route_cache_max_age_ms: f.number("route_cache_max_age_ms")?,
        message_follow_duration_ms: f.number("message_follow_duration_ms")?,
        endpoint: f.opt_text("endpoint")?,
        proof: f.given("proof").map(|_| f.array("proof")).transpose()?,
    })
}

fn admit(f: &Fields<'_>) -> Built<Admit> {
    let lanes = |n| (1..=MAX_LANES).contains(&n).then_some(n);
    let grant = |f: &Fields<'_>| {
        let lanes = f.choice("lanes", lanes, Rule::LaneCount)?;
        Ok(LinkGrant { link_id: link_id(f)?, lanes })
    };
    Ok(Admit { proof: f.array("proof")?, grant: f.opt("grant", grant)? })
}

fn reject<'j>(f: &Fields<'j>) -> Built<Reject<'j>> {
    let reason = f.choice("reason", RejectReason::from_number, Rule::RejectReason)?;
    Ok(Reject { reason, sentence: f.text("sentence")? })
}

fn update(f: &Fields<'_>) -> Built<Update> {
    Ok(Update {
        owner_lease_generation: owner_lease_generation(f)?,
        route_cache_max_age_ms: f.number("route_cache_max_age_ms")?,
        message_follow_duration_ms: f.number("message_follow_duration_ms")?,
        draining: f.bool("draining")?,
    })
}

fn reply<'j>(f: &Fields<'j>) -> Built<Reply<'j>> {
    let terminal = f.choice("terminal", Terminal::from_number, Rule::TerminalUnknown)?;
    let failure_code = f.choice("failure_code", FailureCode::from_number, Rule::FailureUnknown)?;
    if terminal == Terminal::Ok && failure_code != FailureCode::None {
        return Err(f.wrong("failure_code", named(Rule::OkWithFailure)));
    }
    let tail = f.bytes("tail")?;
    if terminal != Terminal::Ok && !tail.is_empty() {
        return Err(f.wrong("tail", named(Rule::TailNotAllowed)));
    }
    Ok(Reply { correlation: correlation(f)?, status: Status { terminal, failure_code }, tail })
}

fn message<'j>(f: &Fields<'j>, command: Command) -> Built<ObjectMessage<'j>> {
    let request = matches!(command, Command::SpotRequest | Command::ActorRequest);
    let form = if matches!(command, Command::SpotSend | Command::SpotRequest) {
        MessageForm::Spot { source_spot: f.text("source_spot")? }
    } else {
        MessageForm::Actor {
            source: f.opt("source_actor", |f| {
                let object_generation = f.fence("object_generation", ObjectGeneration::new)?;
                Ok(ActorSource { id: f.text("id")?, object_generation })
            })?,
            bound_session: f.opt("bound_session", |f| {
                Ok(BoundSession {
                    session: f.rid("session")?,
                    binding_generation: f.fence("binding_generation", BindingGeneration::new)?,
                    sequence: f.fence("sequence", SessionSequence::new)?,
                })
            })?,
        }
    };
    Ok(ObjectMessage {
        correlation: if request { Some(correlation(f)?) } else { None },
        operation_id: operation_id(f)?,
        hop_count: hop_count(f, 0)?,
        form,
        id: f.text("id")?,
        fence: fence(&f.object("fence")?)?,
    })
}

fn operation_id(f: &Fields<'_>) -> Built<OperationId> {
    f.wide("operation_id", OperationId::new, Rule::OperationIdZero)
}

fn hop_count(f: &Fields<'_>, least: u8) -> Built<u8> {
    let hops = |n| (least..=MAX_FOLLOW_HOPS).contains(&n).then_some(n);
    f.choice("hop_count", hops, Rule::HopCount)
}

fn session_bind<'j>(f: &Fields<'j>) -> Built<SessionBind<'j>> {
    Ok(SessionBind {
        correlation: correlation(f)?,
        id: f.text("id")?,
        fence: fence(&f.object("fence")?)?,
        session: f.rid("session")?,
        state: f.choice("state", BindState::from_number, Rule::BindState)?,
        binding_generation: f.fence("binding_generation", BindingGeneration::new)?,
    })
}

fn actor_create<'j>(f: &Fields<'j>) -> Built<ActorCreate<'j>> {
    let attempt = |n| (n != 0).then_some(n);
    Ok(ActorCreate {
        correlation: correlation(f)?,
        mode: f.choice("mode", CreateMode::from_number, Rule::CreateMode)?,
        type_name: f.text("type_name")?,
        id: f.text("id")?,
        attempt_id: f.wide("attempt_id", attempt, Rule::AttemptIdZero)?,
    })
}

fn relocation_id(f: &Fields<'_>) -> Built<RelocationId> {
    f.wide("relocation_id", RelocationId::new, Rule::RelocationIdZero)
}

fn role(f: &Fields<'_>) -> Built<RelocationRole> {
    f.choice("role", RelocationRole::from_number, Rule::RelocationRole)
}

fn coordinator<'j>(f: &Fields<'j>) -> Built<CoordinatorFence<'j>> {
    let f = f.object("coordinator")?;
    Ok(CoordinatorFence {
        owner_id: f.text("owner_id")?,
        owner_lease_generation: owner_lease_generation(&f)?,
        rid: f.rid("rid")?,
        node_generation: node_generation(&f)?,
        expected_store_version: f.text_up_to("expected_store_version", u16::MAX.into())?,
    })
}

fn session_owner<'j>(f: &Fields<'j>) -> Built<SessionOwnerFence<'j>> {
    let f = f.object("session_owner")?;
    Ok(SessionOwnerFence {
        rid: f.rid("rid")?,
        node_generation: node_generation(&f)?,
        owner_id: f.text("owner_id")?,
        owner_lease_generation: owner_lease_generation(&f)?,
        session: f.rid("session")?,
        binding_generation: f.fence("binding_generation", BindingGeneration::new)?,
    })
}

fn relocation_seal<'j>(f: &Fields<'j>) -> Built<RelocationSeal<'j>> {
    Ok(RelocationSeal {
        relocation_id: relocation_id(f)?,
        coordinator: coordinator(f)?,
        role: role(f)?,
        id: f.text("id")?,
        fence: fence(&f.object("fence")?)?,
        session_owner: session_owner(f)?,
    })
}

fn relocation_sealed<'j>(f: &Fields<'j>) -> Built<RelocationSealed<'j>> {
    Ok(RelocationSealed {
        relocation_id: relocation_id(f)?,
        coordinator: coordinator(f)?,
        id: f.text("id")?,
        fence: fence(&f.object("fence")?)?,
        session_owner: session_owner(f)?,
    })
}

fn relocation_route<'j>(f: &Fields<'j>) -> Built<RelocationRoute<'j>> {
    let role = role(f)?;
    let action = match f.opt("commit", commit)? {
        Some(_) if f.given("abort").is_some() => {
            return Err(f.wrong("abort", "there is either a commit or an abort, not both"));
        }
        Some(commit) => commit,
        None if role != RelocationRole::Source && f.given("abort").is_some() => {
            return Err(f.wrong("role", named(Rule::AbortRole)));
        }
        None => {
            let f = f.object("abort")?;
            let current_owner_generation = owner(&f, "current_owner_generation")?;
            RouteAction::Abort { current_owner_generation }
        }
    };
    Ok(RelocationRoute {
        relocation_id: relocation_id(f)?,
        coordinator: coordinator(f)?,
        role,
        id: f.text("id")?,
        object_generation: f.fence("object_generation", ObjectGeneration::new)?,
        session_owner: session_owner(f)?,
        action,
    })
}

fn commit<'j>(f: &Fields<'j>) -> Built<RouteAction<'j>> {
    Ok(RouteAction::Commit {
        previous_owner_generation: owner(f, "previous_owner_generation")?,
        target_owner_generation: owner(f, "target_owner_generation")?,
        rid: f.rid("rid")?,
        node_generation: node_generation(f)?,
        owner_lease_generation: owner_lease_generation(f)?,
    })
}

fn message_follow<'j>(f: &Fields<'j>) -> Built<MessageFollow<'j>> {
    let kinds = [ObjectKind::Actor, ObjectKind::Spot];
    let kind = f.text("object_kind")?;
    let kind = kinds.into_iter().find(|k| k.as_str() == kind);
    let target = f.object("target")?;
    let (from, to) = (fence(&f.object("source")?)?, fence(&target)?);
    if from.object_generation != to.object_generation {
        return Err(target.wrong("object_generation", named(Rule::FollowRoutes)));
    }
    if from.authority_owner_generation >= to.authority_owner_generation {
        return Err(target.wrong("authority_owner_generation", named(Rule::FollowOrder)));
    }
    Ok(MessageFollow {
        kind: kind.ok_or_else(|| f.wrong("object_kind", "it must be actor or spot"))?,
        id: f.text("id")?,
        source: from,
        target: to,
        hop_count: hop_count(f, 1)?,
        queued_messages: f.number("queued_messages")?,
        queued_bytes: f.number("queued_bytes")?,
        operation_id: operation_id(f)?,
        reply_route: f.opt_fence("reply_route", Correlation::new)?,
    })
}

/// A link control record; a credit record borrows its entries, so they come apart.
pub(super) enum Control {
    Other(homing::wire::Control<'static>),
    Credit(Vec<CreditEntry>),
}

/// A link control record.
pub(super) fn control(f: &Fields<'_>) -> Built<Control> {
    use homing::wire::Control as Wire;
    let lane = |n| (1..MAX_LANES).contains(&n).then_some(n);
    match f.number::<u16>("type")? {
        1 => Ok(Control::Other(Wire::LaneAttach(LaneAttach {
            link_id: link_id(f)?,
            lane: f.choice("lane", lane, Rule::LaneNumber)?,
            mac: f.array("mac")?,
        }))),
        2 => f.list("entries")?.iter().map(credit).collect::<Built<_>>().map(Control::Credit),
        9 => Ok(Control::Other(Wire::LeaseRenewed(LeaseRenewed {
            probe_id: probe_id(f)?,
            owner_lease_generation: owner_lease_generation(f)?,
            remaining_ms: f.number("remaining_ms")?,
        }))),
        _ => Err(f.wrong("type", named(Rule::ControlUnknown))),
    }
}

fn credit(f: &Fields<'_>) -> Built<CreditEntry> {
    let bytes = f.choice("bytes", |n: u32| (n > 0).then_some(n), Rule::CreditEmpty)?;
    Ok(CreditEntry { object_hash: f.hex64("object_hash")?, bytes })
}

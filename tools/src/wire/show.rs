#![forbid(unsafe_code)]
//! Frames and records as JSON. Lossless: each field of the wire is there once, under a stable
//! name, or follows from those that are.

use homing::ids::{NodeRid, ObjectKind};
use homing::wire::{
    ActorCreate, ActorDestroy, Admit, Body, BoundSession, Control, CoordinatorFence, DecodedRecord,
    FailureCode, Frame, Hello, MessageFollow, MessageForm, MetadataPart, ObjectMessage,
    PayloadPart, Record, Reject, RelocationRole, RelocationRoute, RelocationSeal, RelocationSealed,
    Reply, RouteAction, RouteFenceRef, SessionBind, SessionOwnerFence, Update,
};

use crate::json::Json;

type Fields = Vec<(&'static str, Json)>;

/// A whole frame.
pub(crate) fn frame(f: &Frame<'_>) -> Json {
    let has_metadata = f.metadata.is_some();
    let body = match &f.body {
        Body::Record(record) => ("record", Json::object(record_fields(record, has_metadata))),
        Body::Control(control) => ("control", Json::object(control_fields(control))),
    };
    Json::object(vec![
        ("kind", text("frame")),
        ("lane", f.lane.into()),
        ("object_hash", hex64(f.object_hash)),
        ("remaining_ms", f.remaining_ms.into()),
        ("bundle", Json::Bool(f.bundle)),
        (
            "origin",
            Json::or_null(f.origin, |origin| {
                Json::object(vec![
                    ("rid", rid(origin.rid)),
                    ("node_generation", origin.node_generation.get().into()),
                    ("reply_route", Json::or_null(origin.reply_route, |c| c.get().into())),
                ])
            }),
        ),
        body,
        ("metadata", Json::or_null(f.metadata.as_ref(), metadata_entries)),
        ("payload", Json::or_null(f.payload.as_ref(), |p| Json::object(payload_fields(p)))),
    ])
}

/// A record with its parts.
pub(crate) fn record(
    decoded: &DecodedRecord<'_>,
    metadata: Option<&MetadataPart<'_>>,
    payload: Option<&PayloadPart<'_>>,
) -> Json {
    let fields = record_fields(&decoded.record, decoded.has_metadata);
    Json::object(vec![
        ("kind", text("record")),
        ("record", Json::object(fields)),
        ("metadata", Json::or_null(metadata, metadata_entries)),
        ("payload", Json::or_null(payload, |p| Json::object(payload_fields(p)))),
    ])
}

/// A link control record.
pub(crate) fn control(control: &Control<'_>) -> Json {
    let fields = control_fields(control);
    Json::object(vec![("kind", text("control")), ("control", Json::object(fields))])
}

/// A metadata part.
pub(crate) fn metadata(part: &MetadataPart<'_>) -> Json {
    Json::object(vec![("kind", text("metadata")), ("metadata", metadata_entries(part))])
}

/// A payload part.
pub(crate) fn payload(part: &PayloadPart<'_>) -> Json {
    let fields = payload_fields(part);
    Json::object(vec![("kind", text("payload")), ("payload", Json::object(fields))])
}

fn metadata_entries(part: &MetadataPart<'_>) -> Json {
    let entry = |(key, value): (&str, &[u8])| {
        Json::object(vec![("key", text(key)), ("value", Json::hex(value))])
    };
    Json::List(part.entries().map(entry).collect())
}

fn payload_fields(part: &PayloadPart<'_>) -> Fields {
    vec![
        ("packet_name", text(part.packet_name)),
        ("content_type", text(part.content_type)),
        ("bytes", Json::hex(part.bytes)),
    ]
}

fn text(text: &str) -> Json {
    Json::Text(text.to_owned())
}

fn hex64(value: u64) -> Json {
    Json::Text(format!("{value:016x}"))
}

fn hex128(value: u128) -> Json {
    Json::Text(format!("{value:032x}"))
}

/// A routing id as `NodeRid` shows it and reads it back.
fn rid(bytes: &[u8]) -> Json {
    NodeRid::new(bytes).map_or_else(|_| Json::hex(bytes), |rid| Json::Text(rid.to_string()))
}

/// A published name: the variant's, beginning with a small letter.
fn name(variant: impl std::fmt::Debug) -> Json {
    let text = format!("{variant:?}");
    let mut chars = text.chars();
    let first = chars.next().map(|c| c.to_ascii_lowercase());
    Json::Text(first.into_iter().chain(chars).collect())
}

fn fence(f: &RouteFenceRef<'_>) -> Json {
    Json::object(vec![
        ("object_generation", f.object_generation.get().into()),
        ("rid", rid(f.rid)),
        ("node_generation", f.node_generation.get().into()),
        ("authority_owner_generation", f.authority_owner_generation.get().into()),
        ("owner_lease_generation", f.owner_lease_generation.get().into()),
    ])
}

fn record_fields(record: &Record<'_>, has_metadata: bool) -> Fields {
    let command = record.command();
    let bound = matches!(record, Record::Message(m) if m.bound_session().is_some());
    let flags = u8::from(has_metadata) | if bound { 6 } else { 0 };
    let mut fields = vec![
        ("command", command.number().into()),
        ("name", text(command.name())),
        ("flags", flags.into()),
    ];
    fields.extend(match record {
        Record::Hello(m) => hello(m),
        Record::Admit(m) => admit(m),
        Record::Reject(m) => reject(m),
        Record::Update(m) => update(m),
        Record::LivenessProbe(m) | Record::LivenessAck(m) => vec![("probe_id", m.probe_id.into())],
        Record::Reply(m) => reply(m),
        Record::Message(m) => message(m),
        Record::ActorDestroy(m) => actor_destroy(m),
        Record::SessionBind(m) => session_bind(m),
        Record::RelocationSeal(m) => relocation_seal(m),
        Record::RelocationSealed(m) => relocation_sealed(m),
        Record::RelocationRoute(m) => relocation_route(m),
        Record::ActorCreate(m) => actor_create(m),
        Record::MessageFollow(m) => message_follow(m),
    });
    fields
}

fn hello(m: &Hello<'_>) -> Fields {
    vec![
        ("protocol_version", m.protocol_version.into()),
        ("mesh", text(m.mesh)),
        ("rid", rid(m.rid)),
        ("node_generation", m.node_generation.get().into()),
        ("owner_lease_generation", m.owner_lease_generation.get().into()),
        ("key_id", Json::hex(&m.key_id)),
        ("nonce", Json::hex(&m.nonce)),
        ("cores", m.cores.into()),
        ("max_frame_bytes", m.max_frame_bytes.into()),
        ("lane_window_bytes", m.lane_window_bytes.into()),
        ("hash_seed_check", hex64(m.hash_seed_check)),
        ("route_cache_max_age_ms", m.route_cache_max_age_ms.into()),
        ("message_follow_duration_ms", m.message_follow_duration_ms.into()),
        ("endpoint", Json::or_null(m.endpoint, text)),
        ("proof", Json::or_null(m.proof, |proof| Json::hex(&proof))),
    ]
}

fn admit(m: &Admit) -> Fields {
    let grant = Json::or_null(m.grant, |grant| {
        Json::object(vec![("link_id", hex64(grant.link_id)), ("lanes", grant.lanes.into())])
    });
    vec![("proof", Json::hex(&m.proof)), ("grant", grant)]
}

fn reject(m: &Reject<'_>) -> Fields {
    vec![
        ("reason", m.reason.number().into()),
        ("reason_name", name(m.reason)),
        ("sentence", text(m.sentence)),
    ]
}

fn update(m: &Update) -> Fields {
    vec![
        ("owner_lease_generation", m.owner_lease_generation.get().into()),
        ("route_cache_max_age_ms", m.route_cache_max_age_ms.into()),
        ("message_follow_duration_ms", m.message_follow_duration_ms.into()),
        ("draining", Json::Bool(m.draining)),
    ]
}

fn reply(m: &Reply<'_>) -> Fields {
    let code = m.status.failure_code;
    vec![
        ("correlation", m.correlation.get().into()),
        ("terminal", m.status.terminal.number().into()),
        ("terminal_name", name(m.status.terminal)),
        ("failure_code", code.number().into()),
        ("failure_name", if code == FailureCode::None { Json::Null } else { name(code) }),
        ("error_kind", Json::or_null(m.status.error_kind(), |kind| text(&kind.to_string()))),
        ("tail", Json::hex(m.tail)),
    ]
}

fn message(m: &ObjectMessage<'_>) -> Fields {
    let mut fields = vec![
        ("correlation", Json::or_null(m.correlation, |c| c.get().into())),
        ("operation_id", hex128(m.operation_id.get())),
        ("hop_count", m.hop_count.into()),
    ];
    match &m.form {
        MessageForm::Spot { source_spot } => fields.push(("source_spot", text(source_spot))),
        MessageForm::Actor { source, .. } => fields.push((
            "source_actor",
            Json::or_null(*source, |source| {
                let generation = source.object_generation.get().into();
                Json::object(vec![("id", text(source.id)), ("object_generation", generation)])
            }),
        )),
    }
    fields.push(("id", text(m.id)));
    fields.push(("fence", fence(&m.fence)));
    if m.kind() == ObjectKind::Actor {
        fields.push(("bound_session", Json::or_null(m.bound_session(), bound_session)));
    }
    fields
}

fn bound_session(m: BoundSession<'_>) -> Json {
    Json::object(vec![
        ("session", rid(m.session)),
        ("binding_generation", m.binding_generation.get().into()),
        ("sequence", m.sequence.get().into()),
    ])
}

fn actor_destroy(m: &ActorDestroy<'_>) -> Fields {
    vec![
        ("correlation", m.correlation.get().into()),
        ("id", text(m.id)),
        ("fence", fence(&m.fence)),
    ]
}

fn actor_create(m: &ActorCreate<'_>) -> Fields {
    vec![
        ("correlation", m.correlation.get().into()),
        ("mode", m.mode.number().into()),
        ("mode_name", name(m.mode)),
        ("type_name", text(m.type_name)),
        ("id", text(m.id)),
        ("attempt_id", hex128(m.attempt_id)),
    ]
}

fn session_bind(m: &SessionBind<'_>) -> Fields {
    vec![
        ("correlation", m.correlation.get().into()),
        ("id", text(m.id)),
        ("fence", fence(&m.fence)),
        ("session", rid(m.session)),
        ("state", m.state.number().into()),
        ("state_name", name(m.state)),
        ("binding_generation", m.binding_generation.get().into()),
    ]
}

fn coordinator(m: &CoordinatorFence<'_>) -> Json {
    Json::object(vec![
        ("owner_id", text(m.owner_id)),
        ("owner_lease_generation", m.owner_lease_generation.get().into()),
        ("rid", rid(m.rid)),
        ("node_generation", m.node_generation.get().into()),
        ("expected_store_version", text(m.expected_store_version)),
    ])
}

fn session_owner(m: &SessionOwnerFence<'_>) -> Json {
    Json::object(vec![
        ("rid", rid(m.rid)),
        ("node_generation", m.node_generation.get().into()),
        ("owner_id", text(m.owner_id)),
        ("owner_lease_generation", m.owner_lease_generation.get().into()),
        ("session", rid(m.session)),
        ("binding_generation", m.binding_generation.get().into()),
    ])
}

fn role(role: RelocationRole) -> [(&'static str, Json); 2] {
    [("role", role.number().into()), ("role_name", name(role))]
}

fn relocation_seal(m: &RelocationSeal<'_>) -> Fields {
    let [number, named] = role(m.role);
    vec![
        ("relocation_id", hex128(m.relocation_id.get())),
        ("coordinator", coordinator(&m.coordinator)),
        number,
        named,
        ("id", text(m.id)),
        ("fence", fence(&m.fence)),
        ("session_owner", session_owner(&m.session_owner)),
    ]
}

fn relocation_sealed(m: &RelocationSealed<'_>) -> Fields {
    vec![
        ("relocation_id", hex128(m.relocation_id.get())),
        ("coordinator", coordinator(&m.coordinator)),
        ("id", text(m.id)),
        ("fence", fence(&m.fence)),
        ("session_owner", session_owner(&m.session_owner)),
    ]
}

fn relocation_route(m: &RelocationRoute<'_>) -> Fields {
    let [number, named] = role(m.role);
    vec![
        ("relocation_id", hex128(m.relocation_id.get())),
        ("coordinator", coordinator(&m.coordinator)),
        number,
        named,
        ("id", text(m.id)),
        ("object_generation", m.object_generation.get().into()),
        ("session_owner", session_owner(&m.session_owner)),
        route_action(&m.action),
    ]
}

fn route_action(action: &RouteAction<'_>) -> (&'static str, Json) {
    match action {
        RouteAction::Commit {
            previous_owner_generation,
            target_owner_generation,
            rid: target,
            node_generation,
            owner_lease_generation,
        } => (
            "commit",
            Json::object(vec![
                ("previous_owner_generation", previous_owner_generation.get().into()),
                ("target_owner_generation", target_owner_generation.get().into()),
                ("rid", rid(target)),
                ("node_generation", node_generation.get().into()),
                ("owner_lease_generation", owner_lease_generation.get().into()),
            ]),
        ),
        RouteAction::Abort { current_owner_generation } => (
            "abort",
            Json::object(vec![("current_owner_generation", current_owner_generation.get().into())]),
        ),
    }
}

fn message_follow(m: &MessageFollow<'_>) -> Fields {
    vec![
        ("object_kind", text(m.kind.as_str())),
        ("id", text(m.id)),
        ("source", fence(&m.source)),
        ("target", fence(&m.target)),
        ("hop_count", m.hop_count.into()),
        ("queued_messages", m.queued_messages.into()),
        ("queued_bytes", m.queued_bytes.into()),
        ("operation_id", hex128(m.operation_id.get())),
        ("reply_route", Json::or_null(m.reply_route, |c| c.get().into())),
    ]
}

fn control_fields(control: &Control<'_>) -> Fields {
    let number = control.type_number();
    let head = |name| vec![("type", number.into()), ("name", text(name))];
    let mut fields;
    match control {
        Control::LaneAttach(c) => {
            fields = head("laneAttach");
            fields.push(("link_id", hex64(c.link_id)));
            fields.push(("lane", c.lane.into()));
            fields.push(("mac", Json::hex(&c.mac)));
        }
        Control::Credit(c) => {
            let entry = |entry: homing::wire::CreditEntry| {
                Json::object(vec![
                    ("object_hash", hex64(entry.object_hash)),
                    ("bytes", entry.bytes.into()),
                ])
            };
            fields = head("credit");
            fields.push(("total_bytes", c.total_bytes().into()));
            fields.push(("entries", Json::List(c.entries().map(entry).collect())));
        }
        Control::LeaseRenewed(c) => {
            fields = head("leaseRenewed");
            fields.push(("probe_id", c.probe_id.into()));
            fields.push(("owner_lease_generation", c.owner_lease_generation.get().into()));
            fields.push(("remaining_ms", c.remaining_ms.into()));
        }
    }
    fields
}

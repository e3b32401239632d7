#![forbid(unsafe_code)]
//! Valid bytes as a list of named fields, so that a test can break one of them and knows
//! where it stands.

/// A valid layout.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) name: &'static str,
    pub(crate) fields: Vec<(&'static str, Vec<u8>)>,
}

pub(crate) fn text8(text: &str) -> Vec<u8> {
    let mut bytes = vec![u8::try_from(text.len()).expect("short")];
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

pub(crate) fn text16(text: &str) -> Vec<u8> {
    let mut bytes = u16::try_from(text.len()).expect("short").to_be_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

pub(crate) fn u16be(n: u16) -> Vec<u8> {
    n.to_be_bytes().to_vec()
}

pub(crate) fn u32be(n: u32) -> Vec<u8> {
    n.to_be_bytes().to_vec()
}

pub(crate) fn u64be(n: u64) -> Vec<u8> {
    n.to_be_bytes().to_vec()
}

pub(crate) fn wide(high: u64, low: u64) -> Vec<u8> {
    [high.to_be_bytes(), low.to_be_bytes()].concat()
}

impl Sample {
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, fields: Vec::new() }
    }

    /// A record with its head.
    pub(crate) fn record(name: &'static str, command: u8, flags: u8) -> Self {
        Self::new(name)
            .field("magic", [0x5A, 0x4D])
            .field("major", [1])
            .field("command", [command])
            .field("flags", [flags])
    }

    pub(crate) fn field(mut self, name: &'static str, bytes: impl AsRef<[u8]>) -> Self {
        assert!(self.fields.iter().all(|(n, _)| *n != name), "{} has two {name}", self.name);
        self.fields.push((name, bytes.as_ref().to_vec()));
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.fields.iter().flat_map(|(_, bytes)| bytes).copied().collect()
    }

    pub(crate) fn offset(&self, field: &str) -> usize {
        let at = self.fields.iter().position(|(name, _)| *name == field);
        let at = at.unwrap_or_else(|| panic!("{} has no field {field}", self.name));
        self.fields[..at].iter().map(|(_, bytes)| bytes.len()).sum()
    }

    /// The bytes with one field replaced.
    pub(crate) fn with(&self, field: &str, value: impl AsRef<[u8]>) -> Vec<u8> {
        self.offset(field);
        let mut copy = self.clone();
        for (name, bytes) in &mut copy.fields {
            if *name == field {
                *bytes = value.as_ref().to_vec();
            }
        }
        copy.bytes()
    }

    /// Where the field that contains the byte `at` begins.
    pub(crate) fn field_start(&self, at: usize) -> usize {
        let mut start = 0;
        for (_, bytes) in &self.fields {
            if at < start + bytes.len() {
                return start;
            }
            start += bytes.len();
        }
        start
    }

    fn fence(
        self,
        names: [&'static str; 6],
        id: &str,
        generation: u64,
        rid: &str,
        authority: u64,
    ) -> Self {
        self.field(names[0], text8(id))
            .field(names[1], u64be(generation))
            .field(names[2], text8(rid))
            .field(names[3], u64be(2))
            .field(names[4], u64be(authority))
            .field(names[5], u64be(13))
    }

    fn route_fence(self) -> Self {
        const NAMES: [&str; 6] = [
            "id",
            "object generation",
            "target rid",
            "node generation",
            "authority owner",
            "owner lease",
        ];
        self.fence(NAMES, "actor-1", 5, "source", 11)
    }

    fn coordinator(self) -> Self {
        self.field("relocation id", wide(7, 9))
            .field("coordinator owner id", text8("coordinator"))
            .field("coordinator lease", u64be(3))
            .field("coordinator rid", text8("source"))
            .field("coordinator node", u64be(2))
            .field("store version", text16("store-v17"))
    }

    fn session_owner(self) -> Self {
        self.field("session node rid", text8("source"))
            .field("session node", u64be(2))
            .field("session owner id", text8("session-owner"))
            .field("session lease", u64be(8))
            .field("session", text8("session"))
            .field("binding", u64be(6))
    }
}

fn message(name: &'static str, command: u8, flags: u8) -> Sample {
    let sample = Sample::record(name, command, flags);
    let sample = match command {
        22 | 25 => sample.field("correlation", u64be(77)),
        _ => sample,
    };
    let sample = sample.field("operation id", wide(1, 2)).field("hop count", [0]);
    let sample = match command {
        21 | 22 => sample.field("source spot", text8("entry")),
        _ => sample.field("source actor", text8("caller")).field("source generation", u64be(3)),
    };
    let sample = sample.route_fence();
    if flags & 6 == 0 {
        return sample;
    }
    sample.field("session", text8("session")).field("binding", u64be(6)).field("sequence", u64be(4))
}

fn hello() -> Sample {
    Sample::record("hello", 1, 0)
        .field("protocol version", u16be(1))
        .field("mesh", text8("game"))
        .field("rid", [2, 0xFF, 0x00])
        .field("node generation", u64be(4))
        .field("owner lease", u64be(5))
        .field("key id", [1; 16])
        .field("nonce", [2; 32])
        .field("cores", u16be(4))
        .field("max frame", u32be(16 << 20))
        .field("lane window", u32be(1 << 20))
        .field("hash seed check", u64be(99))
        .field("cache age", u64be(15_000))
        .field("follow duration", u64be(30_000))
        .field("endpoint", text8("tcp://127.0.0.1:7000"))
        .field("proof present", [1])
        .field("proof", [3; 32])
}

fn follow() -> Sample {
    const SOURCE: [&str; 6] =
        ["id", "source generation", "source rid", "source node", "source owner", "source lease"];
    const TARGET: [&str; 6] = [
        "target id",
        "target generation",
        "target rid",
        "target node",
        "target owner",
        "target lease",
    ];
    // id 8, generation 8, rid 7, then three numbers: 47 bytes per route.
    Sample::record("messageFollow", 50, 0)
        .field("version", [1])
        .field("body length", u32be(2 * 50 + 1 + 4 + 4 + 16 + 8))
        .field("source kind", [1])
        .field("source length", u16be(47))
        .fence(SOURCE, "actor-1", 5, "source", 11)
        .field("target kind", [1])
        .field("target length", u16be(47))
        .fence(TARGET, "actor-1", 5, "target", 12)
        .field("hop count", [1])
        .field("queued messages", u32be(3))
        .field("queued bytes", u32be(300))
        .field("operation id", wide(1, 2))
        .field("reply route", u64be(77))
}

fn route(action: u8) -> Sample {
    let sample = Sample::record("sessionRelocationRoute", 44, 0)
        .coordinator()
        .field("role", [1])
        .field("id", text8("actor-1"))
        .field("object generation", u64be(5))
        .session_owner()
        .field("action", [action]);
    if action == 2 {
        return sample.field("body length", u16be(8)).field("current owner", u64be(11));
    }
    sample
        .field("body length", u16be(39))
        .field("previous owner", u64be(11))
        .field("target owner", u64be(12))
        .field("target rid", text8("target"))
        .field("target node", u64be(4))
        .field("target lease", u64be(5))
}

/// One valid record of every command, and of every form of its body.
pub(crate) fn records() -> Vec<Sample> {
    vec![
        hello(),
        Sample::record("admit", 2, 0)
            .field("proof", [7; 32])
            .field("grant present", [1])
            .field("link id", u64be(12))
            .field("lanes", u16be(4)),
        Sample::record("reject", 3, 0)
            .field("reason", u16be(2))
            .field("sentence", text8("wrong proof")),
        Sample::record("update", 4, 0)
            .field("owner lease", u64be(5))
            .field("cache age", u64be(1))
            .field("follow duration", u64be(2))
            .field("draining", [1]),
        Sample::record("livenessProbe", 5, 0).field("probe id", u64be(9)),
        Sample::record("livenessAck", 6, 0).field("probe id", u64be(9)),
        Sample::record("reply", 20, 0)
            .field("correlation", u64be(77))
            .field("terminal", u32be(102))
            .field("failure", u32be(1)),
        message("spotSend", 21, 0),
        message("spotRequest", 22, 1),
        message("actorSend", 24, 6),
        message("actorRequest", 25, 7),
        Sample::record("actorDestroy", 27, 0).field("correlation", u64be(77)).route_fence(),
        Sample::record("boundSessionBind", 38, 0)
            .field("correlation", u64be(77))
            .route_fence()
            .field("session", text8("session"))
            .field("state", [1])
            .field("body length", u16be(8))
            .field("binding", u64be(6)),
        Sample::record("sessionRelocationSeal", 42, 0)
            .coordinator()
            .field("role", [1])
            .route_fence()
            .session_owner(),
        Sample::record("sessionRelocationSealed", 43, 0)
            .coordinator()
            .route_fence()
            .session_owner(),
        route(1),
        Sample { name: "sessionRelocationRoute abort", ..route(2) },
        Sample::record("actorCreate", 49, 0)
            .field("correlation", u64be(77))
            .field("mode", [1])
            .field("type name", text8("counter"))
            .field("id", text8("counter-42"))
            .field("attempt id", wide(5, 6)),
        follow(),
    ]
}

/// The record of that name.
pub(crate) fn record(name: &str) -> Sample {
    let found = records().into_iter().find(|sample| sample.name == name);
    found.unwrap_or_else(|| panic!("no sample {name}"))
}

pub(crate) fn payload_part() -> Sample {
    Sample::new("payload part")
        .field("version", [1])
        .field("body length", u32be(4 + 3 + 6))
        .field("packet name", text8("add"))
        .field("content type", text8("x/"))
        .field("bytes", [0, 0, 0, 2, 0xAA, 0xBB])
}

pub(crate) fn metadata_part() -> Sample {
    Sample::new("metadata part")
        .field("version", [1])
        .field("count", [2])
        .field("first key", text8("A"))
        .field("first value", text16("first"))
        .field("second key", text8("B"))
        .field("second value", text16("second"))
}

#![forbid(unsafe_code)]
//! Identities and fences: the words every other module speaks (R0-1..R0-4).
//!
//! Ids are validated once, when they are made; after that a value of one of these types
//! is known to be good. Fence numbers are distinct types so that one cannot stand in for
//! another, and none of them has a zero.

use std::borrow::Borrow;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;

use crate::error::Error;
use crate::limits::{MAX_FENCE, MAX_ID_BYTES};

/// What an id names: an Actor or a Spot. The two are separate name spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ObjectKind {
    /// An Actor.
    Actor = 1,
    /// A Spot.
    Spot = 2,
}

impl ObjectKind {
    /// The word used in messages and in Store keys.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Actor => "actor",
            Self::Spot => "spot",
        }
    }
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Checks the rule of R0-1 and R0-2 for text: 1..=255 bytes of UTF-8 without NUL.
fn check_text(what: &str, value: &str) -> Result<(), Error> {
    if value.is_empty() || value.len() > MAX_ID_BYTES {
        return Err(Error::invalid(format!(
            "{what} has {} bytes; it must have 1 to {MAX_ID_BYTES} bytes of UTF-8",
            value.len()
        )));
    }
    if let Some(at) = value.bytes().position(|b| b == 0) {
        return Err(Error::invalid(format!(
            "{what} {value:?} has a NUL byte at offset {at}; NUL is not allowed"
        )));
    }
    Ok(())
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Makes the id from text.
            ///
            /// # Errors
            /// `InvalidOperation` when the text is empty, longer than 255 bytes or has a NUL.
            pub fn new(text: impl AsRef<str>) -> Result<Self, Error> {
                check_text($what, text.as_ref())?;
                Ok(Self(Arc::from(text.as_ref())))
            }

            /// The text, byte for byte as it was given.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl std::str::FromStr for $name {
            type Err = Error;
            fn from_str(text: &str) -> Result<Self, Error> {
                Self::new(text)
            }
        }
    };
}

text_id!(
    /// The global id of an Actor: UTF-8, 1..=255 bytes, compared byte by byte (R0-1).
    ///
    /// ```
    /// use homing::ids::ActorId;
    /// let id = ActorId::new("counter-42")?;
    /// assert_eq!(id.as_str(), "counter-42");
    /// assert!(ActorId::new("").is_err());
    /// # Ok::<(), homing::Error>(())
    /// ```
    ActorId,
    "actor id"
);
text_id!(
    /// The global id of a Spot: UTF-8, 1..=255 bytes, compared byte by byte (R0-1).
    ///
    /// ```
    /// use homing::ids::SpotId;
    /// assert!(SpotId::new("room-7").is_ok());
    /// ```
    SpotId,
    "spot id"
);
text_id!(
    /// The name of a mesh: the group of nodes whose links carry each other's messages (R0-2).
    ///
    /// ```
    /// use homing::ids::MeshName;
    /// assert!(MeshName::new("game").is_ok());
    /// ```
    MeshName,
    "mesh name"
);

/// The routing id of a node: 1..=255 bytes (R0-2). Shown as text when it is UTF-8, as
/// `0x…` otherwise.
///
/// ```
/// use homing::ids::NodeRid;
/// let rid = NodeRid::new("node-a")?;
/// assert_eq!(rid.to_string(), "node-a");
/// assert!(NodeRid::new([0u8; 256]).is_err());
/// # Ok::<(), homing::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeRid(Arc<[u8]>);

impl NodeRid {
    /// Makes the rid from bytes.
    ///
    /// # Errors
    /// `InvalidOperation` when there are no bytes or more than 255.
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Self, Error> {
        let bytes = bytes.as_ref();
        if bytes.is_empty() || bytes.len() > MAX_ID_BYTES {
            return Err(Error::invalid(format!(
                "node rid has {} bytes; it must have 1 to {MAX_ID_BYTES} bytes",
                bytes.len()
            )));
        }
        Ok(Self(Arc::from(bytes)))
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Reads back what `Display` wrote.
    ///
    /// # Errors
    /// As [`NodeRid::new`]; also when the text starts with `0x` and the rest is not hex.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let Some(hex) = text.strip_prefix("0x") else {
            return Self::new(text.as_bytes());
        };
        let digit = |b: u8| (b as char).to_digit(16);
        let bytes: Option<Vec<u8>> = hex
            .as_bytes()
            .chunks(2)
            .map(|pair| match pair {
                [h, l] => Some((digit(*h)? * 16 + digit(*l)?) as u8),
                _ => None,
            })
            .collect();
        match bytes {
            Some(bytes) => Self::new(bytes),
            None => Err(Error::invalid(format!(
                "node rid {text:?} starts with 0x but is not an even number of hex digits"
            ))),
        }
    }
}

impl fmt::Display for NodeRid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match std::str::from_utf8(&self.0) {
            Ok(text) if !text.starts_with("0x") && !text.contains('\0') => f.write_str(text),
            _ => {
                f.write_str("0x")?;
                self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
            }
        }
    }
}

impl fmt::Debug for NodeRid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

macro_rules! fence {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(NonZeroU64);

        impl $name {
            /// The first value.
            pub const FIRST: Self = Self(NonZeroU64::MIN);

            /// Makes the fence from a number of 1..=2^63-1; `None` outside that range.
            #[must_use]
            pub const fn new(value: u64) -> Option<Self> {
                if value > MAX_FENCE {
                    return None;
                }
                match NonZeroU64::new(value) {
                    Some(v) => Some(Self(v)),
                    None => None,
                }
            }

            /// The number.
            #[must_use]
            pub const fn get(self) -> u64 {
                self.0.get()
            }

            /// The value after this one.
            ///
            /// # Errors
            /// `InternalFailure` when the numbers have run out; they never wrap (R0-3).
            pub fn next(self) -> Result<Self, Error> {
                Self::new(self.get() + 1).ok_or_else(|| {
                    Error::internal(concat!($what, " numbers have run out (2^63-1 used)"))
                })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.get(), f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.get(), f)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_u64(self.get())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let value = u64::deserialize(d)?;
                Self::new(value).ok_or_else(|| {
                    serde::de::Error::custom(format!(
                        concat!($what, " {} is outside 1..=2^63-1"),
                        value
                    ))
                })
            }
        }
    };
}

fence!(
    /// Tells one incarnation of an id from the next. Never used twice for an id (R0-3).
    ObjectGeneration,
    "object generation"
);
fence!(
    /// Numbers the tenures of one incarnation: one more for every move (R5-3).
    AuthorityOwnerGeneration,
    "authority owner generation"
);
fence!(
    /// One per host process lifecycle; a renewal keeps it (R0-3).
    OwnerLeaseGeneration,
    "owner lease generation"
);
fence!(
    /// One per lifecycle of a node.
    NodeGeneration,
    "node generation"
);
fence!(
    /// One per binding of a session to an Actor.
    BindingGeneration,
    "binding generation"
);
fence!(
    /// The version the Location Store gave a record.
    StoreVersion,
    "store version"
);
fence!(
    /// Connects a reply to its pending request at the node that made it (R0-4).
    Correlation,
    "correlation"
);

macro_rules! random_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u128);

        impl $name {
            /// Makes the id; `None` for zero, which is not an id.
            #[must_use]
            pub const fn new(value: u128) -> Option<Self> {
                if value == 0 { None } else { Some(Self(value)) }
            }

            /// The 128 bits.
            #[must_use]
            pub const fn get(self) -> u128 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }
    };
}

random_id!(
    /// One send or request, for its whole life, across relays (R0-4).
    OperationId
);
random_id!(
    /// One relocation attempt (R0-4).
    RelocationId
);

/// The keyed 128-bit hash of an object's kind and id. The low half chooses home core and
/// lane, the high half cache set and tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectHash(u128);

impl ObjectHash {
    /// Hashes `kind` and `id` under the mesh's seed.
    #[must_use]
    pub fn of(seed: u64, kind: ObjectKind, id: &str) -> Self {
        use xxhash_rust::xxh3::xxh3_128_with_seed;
        // The kind goes into the seed, so that the id is hashed in place without a copy.
        let seed = seed ^ (u64::from(kind as u8)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Self(xxh3_128_with_seed(id.as_bytes(), seed))
    }

    /// The half that travels in a link frame.
    #[must_use]
    pub const fn low(self) -> u64 {
        self.0 as u64
    }

    /// The half for cache sets, tags and maps.
    #[must_use]
    pub const fn high(self) -> u64 {
        (self.0 >> 64) as u64
    }
}

/// An object's kind and id together with their hash: the key of every map of objects.
///
/// Equality compares the id itself; the hash only speeds it up.
#[derive(Clone, Debug)]
pub struct ObjectKey {
    hash: ObjectHash,
    kind: ObjectKind,
    id: Arc<str>,
}

impl ObjectKey {
    /// Makes the key of an Actor.
    #[must_use]
    pub fn actor(seed: u64, id: &ActorId) -> Self {
        Self {
            hash: ObjectHash::of(seed, ObjectKind::Actor, id.as_str()),
            kind: ObjectKind::Actor,
            id: id.0.clone(),
        }
    }

    /// Makes the key of a Spot.
    #[must_use]
    pub fn spot(seed: u64, id: &SpotId) -> Self {
        Self {
            hash: ObjectHash::of(seed, ObjectKind::Spot, id.as_str()),
            kind: ObjectKind::Spot,
            id: id.0.clone(),
        }
    }

    /// Makes the key from parts that came off the wire or out of the Store.
    ///
    /// # Errors
    /// `InvalidOperation` when the id breaks R0-1.
    pub fn new(seed: u64, kind: ObjectKind, id: &str) -> Result<Self, Error> {
        check_text(if kind == ObjectKind::Actor { "actor id" } else { "spot id" }, id)?;
        Ok(Self { hash: ObjectHash::of(seed, kind, id), kind, id: Arc::from(id) })
    }

    /// The hash.
    #[must_use]
    pub const fn object_hash(&self) -> ObjectHash {
        self.hash
    }

    /// Actor or Spot.
    #[must_use]
    pub const fn kind(&self) -> ObjectKind {
        self.kind
    }

    /// The id's text.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The id as an Actor id; `None` for a Spot.
    #[must_use]
    pub fn actor_id(&self) -> Option<ActorId> {
        (self.kind == ObjectKind::Actor).then(|| ActorId(self.id.clone()))
    }

    /// The id as a Spot id; `None` for an Actor.
    #[must_use]
    pub fn spot_id(&self) -> Option<SpotId> {
        (self.kind == ObjectKind::Spot).then(|| SpotId(self.id.clone()))
    }
}

impl PartialEq for ObjectKey {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && self.kind == other.kind && self.id == other.id
    }
}

impl Eq for ObjectKey {}

impl std::hash::Hash for ObjectKey {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash.high());
    }
}

impl Ord for ObjectKey {
    /// By hash, then kind, then id: an order that a run repeats, and that means nothing else.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.hash, self.kind, &self.id).cmp(&(other.hash, other.kind, &other.id))
    }
}

impl PartialOrd for ObjectKey {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.kind, &*self.id)
    }
}

/// A map whose hasher is seeded by us and not by the process: two runs of the simulator
/// with one seed walk it in the same order. The keys of such maps are hashed ids, fences or
/// numbers of our own, never raw bytes of a peer's choice.
#[allow(clippy::disallowed_types)] // the hasher is fixed
pub type FixedMap<K, V> = std::collections::HashMap<K, V, foldhash::fast::FixedState>;

/// A set with the hasher of [`FixedMap`].
#[allow(clippy::disallowed_types)] // the hasher is fixed
pub type FixedSet<K> = std::collections::HashSet<K, foldhash::fast::FixedState>;

/// One incarnation of an Actor and where it was seen: what control operations name (R2.6-2).
///
/// It is never the target of a message.
///
/// ```
/// # fn show(r: &homing::ids::ActorRef) {
/// println!("{} generation {} at {}", r.id, r.generation, r.rid);
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ActorRef {
    /// The Actor's id.
    pub id: ActorId,
    /// Its incarnation.
    pub generation: ObjectGeneration,
    /// The mesh of the owner when this was read.
    pub mesh: MeshName,
    /// The owner when this was read.
    pub rid: NodeRid,
}

/// One incarnation of a Spot and where it was seen (R2.6-2).
///
/// ```
/// # fn show(r: &homing::ids::SpotRef) {
/// println!("{} generation {} at {}", r.id, r.generation, r.rid);
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SpotRef {
    /// The Spot's id.
    pub id: SpotId,
    /// Its incarnation.
    pub generation: ObjectGeneration,
    /// The mesh of the owner when this was read.
    pub mesh: MeshName,
    /// The owner when this was read.
    pub rid: NodeRid,
}

/// The fences of a route: what a target checks before it admits (R2.1-3), and what travels
/// as `route-fence` in a record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RouteFence {
    /// The incarnation that was resolved.
    pub object_generation: ObjectGeneration,
    /// The owner that was resolved.
    pub rid: NodeRid,
    /// The lifecycle of the owner's node.
    pub node_generation: NodeGeneration,
    /// The tenure.
    pub authority_owner_generation: AuthorityOwnerGeneration,
    /// The owner's process lifecycle.
    pub owner_lease_generation: OwnerLeaseGeneration,
}

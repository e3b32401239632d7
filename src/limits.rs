#![forbid(unsafe_code)]
//! Every bound in one place, with the assertions that relate them.

use std::time::Duration;

/// Longest id, rid or mesh name, in bytes (R0-1, R0-2).
pub const MAX_ID_BYTES: usize = 255;
/// Largest value of a fence number (R0-3).
pub const MAX_FENCE: u64 = (1 << 63) - 1;
/// Follow hops at most (R2.5-2).
pub const MAX_FOLLOW_HOPS: u8 = 8;
/// Size of the link frame's header.
pub const FRAME_HEADER_BYTES: usize = 40;
/// Size of a record's head.
pub const RECORD_HEAD_BYTES: usize = 5;
/// Largest metadata part (WIRE).
pub const MAX_METADATA_BYTES: usize = 1024;
/// Largest frame unless the builder says otherwise (R0-6).
pub const DEFAULT_MAX_FRAME_BYTES: u32 = 16 << 20;
/// The smallest largest-frame a node may ask for: any control record fits.
pub const MIN_MAX_FRAME_BYTES: u32 = 64 << 10;
/// The largest largest-frame a node may ask for.
pub const MAX_MAX_FRAME_BYTES: u32 = 1 << 30;
/// Lanes per link at most.
pub const MAX_LANES: u16 = 16;
/// Cores per node at most.
pub const MAX_CORES: u16 = 256;
/// Bytes of operations a core keeps waiting (resolving, for a link, for credit) at most.
pub const WAITING_BUDGET_BYTES: u64 = 64 << 20;
/// Bytes of credit a receiver grants per lane.
pub const LANE_WINDOW_BYTES: u32 = 1 << 20;
/// The share of a lane's window, or of a core's budget, one object may hold: 1/4.
pub const OBJECT_SHARE_DIVISOR: u32 = 4;
/// Credit goes back at the latest this long after it came free, however little it is.
pub const CREDIT_RETURN_DELAY: Duration = Duration::from_millis(1);
/// The part of a window, 1/16, that goes back at once when so much came free.
pub const CREDIT_RETURN_DIVISOR: u32 = 16;
/// Bytes of local messages a core queues before its senders wait.
pub const LOCAL_BUDGET_BYTES: u64 = 16 << 20;
/// Largest frame accepted before a peer has proved who it is.
pub const MAX_HANDSHAKE_FRAME_BYTES: u32 = 8 << 10;
/// Accepted streams that may be without a proof at once; then the oldest is closed.
pub const MAX_HALF_OPEN_HANDSHAKES: usize = 1024;
/// Peers a node remembers; then the one heard of longest ago that has no link is forgotten.
pub const MAX_KNOWN_PEERS: usize = 1 << 16;

/// Routes a node caches at most, over all its cores (DESIGN §7).
pub const ROUTE_CACHE_ROUTES: usize = 65_536;
/// Routes per set of the route cache.
pub const ROUTE_CACHE_WAYS: usize = 4;
/// Routes of a core for which one block for the rest of an id over 48 bytes is set aside.
pub const ROUTES_PER_ID_BLOCK: u32 = 16;
/// Nodes of which a core tells readers of its region; it knows more for itself.
pub const NODE_TABLE_ROWS: u32 = 1024;
/// Store reads of one id in flight at most; later callers wait for one of them to end.
pub const MAX_READS_PER_ID: usize = 3;
/// Requests that ended without a reply and whose late reply is still told apart by kind.
pub const LATE_REPLY_MEMORY: usize = 1024;
/// Creation attempts whose result a core remembers for callers that ask late.
pub const CREATION_MEMORY: usize = 1024;

/// The age at which a cached route ends (R0-6).
pub const DEFAULT_ROUTE_CACHE_MAX_AGE: Duration = Duration::from_secs(15);
/// How long a previous owner relays (R0-6).
pub const DEFAULT_MESSAGE_FOLLOW_DURATION: Duration = Duration::from_secs(30);
/// How much shorter the cache age must be than the follow duration (R0-7).
pub const CACHE_FOLLOW_GAP: Duration = Duration::from_secs(5);
/// Length of an owner lease (R0-6).
pub const DEFAULT_LEASE_DURATION: Duration = Duration::from_secs(10);
/// Renewal interval of an owner lease (R0-6).
pub const DEFAULT_LEASE_RENEW_INTERVAL: Duration = Duration::from_secs(3);
/// How long before the end of a lease admission stops (R0-6).
pub const LEASE_ADMISSION_MARGIN: Duration = Duration::from_millis(500);
/// Default time of a request (R0-6).
pub const DEFAULT_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Default time a send may wait for admission (R0-6).
pub const DEFAULT_SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of the liveness probe (R0-6).
pub const DEFAULT_LIVENESS_INTERVAL: Duration = Duration::from_secs(5);
/// Silence after which a peer is lost (R0-6).
pub const DEFAULT_LIVENESS_TIMEOUT: Duration = Duration::from_secs(15);
/// Time a handshake may take, from connect to the last lane.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a creation may take as a whole.
pub const DEFAULT_CREATE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time for one Store call before it counts as failed.
pub const DEFAULT_STORE_TIMEOUT: Duration = Duration::from_secs(2);
/// First pause before a lost peer is dialled again; doubled up to the next bound, jittered.
pub const RECONNECT_MIN: Duration = Duration::from_millis(50);
/// Longest pause before a lost peer is dialled again.
pub const RECONNECT_MAX: Duration = Duration::from_secs(5);
/// How long the Store may fail in a row while a node starts.
pub const START_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a node whose lease has lapsed looks whether it was renewed.
pub const LAPSED_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Entries of one credit record: it fits any frame a link may carry.
pub const CREDIT_ENTRIES_PER_FRAME: usize = 4096;
/// Numbers a node takes from the Store's generation counter at once.
pub const GENERATION_BLOCK: u64 = 4096;

const _: () = {
    assert!(MAX_METADATA_BYTES < MAX_HANDSHAKE_FRAME_BYTES as usize);
    assert!(MAX_HANDSHAKE_FRAME_BYTES <= MIN_MAX_FRAME_BYTES);
    assert!(MIN_MAX_FRAME_BYTES <= DEFAULT_MAX_FRAME_BYTES);
    assert!(DEFAULT_MAX_FRAME_BYTES <= MAX_MAX_FRAME_BYTES);
    assert!(
        DEFAULT_ROUTE_CACHE_MAX_AGE.as_millis() + CACHE_FOLLOW_GAP.as_millis()
            <= DEFAULT_MESSAGE_FOLLOW_DURATION.as_millis()
    );
    assert!(
        DEFAULT_LEASE_RENEW_INTERVAL.as_millis() * 2 + LEASE_ADMISSION_MARGIN.as_millis()
            < DEFAULT_LEASE_DURATION.as_millis()
    );
    assert!(DEFAULT_LIVENESS_INTERVAL.as_millis() * 2 < DEFAULT_LIVENESS_TIMEOUT.as_millis());
    assert!(LANE_WINDOW_BYTES / OBJECT_SHARE_DIVISOR >= 4096);
};

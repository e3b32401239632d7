#![forbid(unsafe_code)]
//! Nodes joined by in-memory streams. What is delivered next is chosen from outside; bytes of one
//! stream keep their order, everything else may happen in any order. Rules that must hold in
//! every run are checked at every step.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::super::*;
use super::{endpoint, peers};
use crate::env::CloseReason;

/// What a lane sends once its link is up.
const APP: &[u8] = b"application bytes";

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Item {
    Connected,
    Accepted,
    Bytes(Vec<u8>),
    Closed(CloseReason),
    CloseLane(LinkId, u16),
}

/// Where an item waits: per stream end and per lane to close, so that only what is ordered in
/// reality is ordered here.
type Channel = (usize, ConnId, bool);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Owner {
    Core0,
    Lane(LinkId, u16),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct End {
    owner: Owner,
    remote: Option<(usize, ConnId)>,
}

/// How far a link is, by the effects alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SeenLink {
    pub(super) info: Arc<LinkInfo>,
    pub(super) up: bool,
    pub(super) closing: Option<PeerCloseReason>,
    /// Stream of each lane.
    pub(super) lanes: BTreeMap<u16, ConnId>,
    /// Application bytes that came in, per lane.
    pub(super) received: BTreeMap<u16, Vec<u8>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Node {
    pub(super) machine: Peers,
    endpoint: Endpoint,
    listening: bool,
    ends: BTreeMap<ConnId, End>,
    pub(super) links: BTreeMap<LinkId, SeenLink>,
    /// Needs asked, not yet answered, by rid.
    pub(super) unanswered: BTreeMap<NodeRid, u32>,
    pub(super) need_failures: Vec<(PeerIdentity, String, Option<Duration>)>,
    pub(super) closes: BTreeMap<PeerCloseReason, u32>,
    pub(super) dials: u32,
    pub(super) links_down: u32,
    /// Intents, as they were installed (`true`) and removed.
    pub(super) intents: Vec<(IntentId, bool)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Net {
    pub(super) nodes: Vec<Node>,
    channels: BTreeMap<Channel, VecDeque<Item>>,
    pub(super) now: Nanos,
    next_conn: u64,
    /// Frames sent and read during handshakes, in order, for tests that look at them.
    pub(super) sent: Option<Vec<(usize, Vec<u8>)>>,
}

impl Node {
    fn new(config: PeerConfig) -> Self {
        let name = config.identity.rid.to_string();
        Self {
            machine: peers(config),
            endpoint: endpoint(&name),
            listening: true,
            ends: BTreeMap::new(),
            links: BTreeMap::new(),
            unanswered: BTreeMap::new(),
            need_failures: Vec::new(),
            closes: BTreeMap::new(),
            dials: 0,
            links_down: 0,
            intents: Vec::new(),
        }
    }

    /// The links that stand.
    pub(super) fn standing(&self) -> Vec<(LinkId, &SeenLink)> {
        self.links.iter().filter(|(_, l)| l.closing.is_none()).map(|(id, l)| (*id, l)).collect()
    }

    pub(super) fn closed_for(&self, reason: PeerCloseReason) -> u32 {
        self.closes.get(&reason).copied().unwrap_or(0)
    }
}

impl Net {
    pub(super) fn new(configs: impl IntoIterator<Item = PeerConfig>) -> Self {
        Self {
            nodes: configs.into_iter().map(Node::new).collect(),
            channels: BTreeMap::new(),
            now: Nanos(1_000_000_000),
            next_conn: 0,
            sent: None,
        }
    }

    pub(super) fn event(&mut self, node: usize, event: PeerEvent) {
        if let PeerEvent::Need { descriptor } = &event {
            let asked = &mut self.nodes[node].unanswered;
            *asked.entry(descriptor.identity.rid.clone()).or_default() += 1;
        }
        let mut out = Vec::new();
        let now = self.now;
        self.nodes[node].machine.step(event, now, &mut out);
        for effect in out {
            self.effect(node, effect);
        }
    }

    fn push(&mut self, channel: Channel, item: Item) {
        self.channels.entry(channel).or_default().push_back(item);
    }

    fn remote(&self, node: usize, conn: ConnId) -> Option<(usize, ConnId)> {
        self.nodes[node].ends.get(&conn)?.remote
    }

    fn close_end(&mut self, node: usize, conn: ConnId) {
        if let Some(End { remote: Some((there, far)), .. }) = self.nodes[node].ends.remove(&conn) {
            self.push((there, far, false), Item::Closed(CloseReason::Eof));
            if let Some(end) = self.nodes[there].ends.get_mut(&far) {
                end.remote = None;
            }
        }
        self.channels.remove(&(node, conn, false));
    }

    fn new_conn(&mut self) -> ConnId {
        self.next_conn += 1;
        ConnId(self.next_conn)
    }

    fn dial(&mut self, node: usize, dial: DialToken, to: &Endpoint) {
        self.nodes[node].dials += 1;
        let conn = self.new_conn();
        let target = self.nodes.iter().position(|n| n.listening && n.endpoint == *to);
        let remote = target.map(|there| (there, self.new_conn()));
        self.nodes[node].ends.insert(conn, End { owner: Owner::Core0, remote });
        if let Some((there, far)) = remote {
            let end = End { owner: Owner::Core0, remote: Some((node, conn)) };
            self.nodes[there].ends.insert(far, end);
            self.push((there, far, false), Item::Accepted);
            self.push((node, conn, false), Item::Connected);
        } else {
            let reason = CloseReason::DialFailed("connection refused".to_owned());
            self.push((node, conn, false), Item::Closed(reason));
        }
        self.event(node, PeerEvent::Dialed { dial, conn });
    }

    fn effect(&mut self, node: usize, effect: PeerEffect) {
        match effect {
            PeerEffect::Dial { dial, endpoint } => self.dial(node, dial, &endpoint),
            PeerEffect::Send { conn, frame } => {
                if let Some(sent) = &mut self.sent {
                    sent.push((node, frame.clone()));
                }
                if let Some((there, far)) = self.remote(node, conn) {
                    self.push((there, far, false), Item::Bytes(frame));
                }
            }
            PeerEffect::Close { conn, reason, detail } => {
                assert!(!detail.is_empty());
                *self.nodes[node].closes.entry(reason).or_default() += 1;
                self.close_end(node, conn);
            }
            PeerEffect::LinkAdmitted { link, info } => self.on_admitted(node, link, info),
            PeerEffect::LaneReady { conn, link, lane, core, unread } => {
                let cores = self.nodes[node].machine.config.cores;
                assert_eq!(core, lane % cores);
                let seen = self.nodes[node].links.get_mut(&link).unwrap();
                assert!(lane < seen.info.lanes && seen.closing.is_none() && !seen.up);
                assert_eq!(seen.lanes.insert(lane, conn), None);
                seen.received.insert(lane, unread);
                self.nodes[node].ends.get_mut(&conn).unwrap().owner = Owner::Lane(link, lane);
            }
            PeerEffect::LinkUp { link, info } => self.on_up(node, link, &info),
            PeerEffect::CloseLink { link, peer, reason, detail } => {
                assert!(!detail.is_empty());
                let seen = self.nodes[node].links.get_mut(&link).unwrap();
                assert_eq!(seen.closing.replace(reason), None, "CloseLink came twice");
                assert_eq!(seen.info.peer, peer);
                for (lane, conn) in seen.lanes.clone() {
                    self.push((node, conn, true), Item::CloseLane(link, lane));
                }
            }
            PeerEffect::LinkDown { link, peer, reason } => {
                let seen = self.nodes[node].links.remove(&link).unwrap();
                assert_eq!((seen.closing, &seen.info.peer), (Some(reason), &peer));
                assert!(seen.lanes.is_empty(), "LinkDown before all lanes were closed");
                self.nodes[node].links_down += 1;
            }
            PeerEffect::NeedMet { peer, link } => {
                assert!(self.nodes[node].links[&link].up);
                let left = self.nodes[node].unanswered.get_mut(&peer.rid).unwrap();
                *left -= 1;
            }
            PeerEffect::NeedFailed { peer, reason, next_attempt_in } => {
                assert!(!reason.is_empty());
                self.nodes[node].unanswered.insert(peer.rid.clone(), 0);
                self.nodes[node].need_failures.push((peer, reason, next_attempt_in));
            }
            PeerEffect::IntentInstalled { intent } => {
                let of_it = |l: &SeenLink| l.info.intent == Some(intent);
                assert!(!self.nodes[node].links.values().any(of_it), "its old link is still there");
                self.nodes[node].intents.push((intent, true));
            }
            PeerEffect::IntentRemoved { intent } => {
                let of_it = |l: &SeenLink| l.info.intent == Some(intent);
                assert!(!self.nodes[node].links.values().any(of_it), "its link is still there");
                self.nodes[node].intents.push((intent, false));
            }
            PeerEffect::Wake(at) => assert_eq!(at, self.nodes[node].machine.next_deadline()),
        }
    }

    /// Checks R5-4: no link to a peer before every lane of the one before is closed.
    fn on_admitted(&mut self, node: usize, link: LinkId, info: Arc<LinkInfo>) {
        let of_peer = |l: &SeenLink| l.info.peer.rid == info.peer.rid;
        assert!(!self.nodes[node].links.values().any(of_peer), "admitted before LinkDown");
        let seen = SeenLink {
            info,
            up: false,
            closing: None,
            lanes: BTreeMap::new(),
            received: BTreeMap::new(),
        };
        assert!(self.nodes[node].links.insert(link, seen).is_none());
    }

    fn on_up(&mut self, node: usize, link: LinkId, info: &Arc<LinkInfo>) {
        let seen = self.nodes[node].links.get_mut(&link).unwrap();
        assert!(!seen.up && seen.closing.is_none() && seen.info == *info);
        assert_eq!(seen.lanes.len(), usize::from(info.lanes));
        seen.up = true;
        for conn in seen.lanes.clone().into_values() {
            if let Some((there, far)) = self.remote(node, conn) {
                self.push((there, far, false), Item::Bytes(APP.to_vec()));
            }
        }
        self.nodes[node].unanswered.insert(info.peer.rid.clone(), 0);
    }

    /// How many things could happen next.
    pub(super) fn choices(&self) -> usize {
        self.channels.len()
    }

    /// Lets the first item of the `n`th channel happen.
    pub(super) fn deliver(&mut self, n: usize) {
        let (&channel, items) = self.channels.iter_mut().nth(n).unwrap();
        let item = items.pop_front().unwrap();
        if items.is_empty() {
            self.channels.remove(&channel);
        }
        self.happen(channel, item);
    }

    /// Like [`Net::deliver`], with the bytes of a stream cut at `cut`, or joined to what follows.
    pub(super) fn deliver_cut(&mut self, n: usize, cut: usize) {
        let (&channel, items) = self.channels.iter_mut().nth(n).unwrap();
        let Some(Item::Bytes(_)) = items.front() else { return self.deliver(n) };
        let mut bytes = Vec::new();
        while let Some(Item::Bytes(next)) = items.front() {
            bytes.extend_from_slice(next);
            items.pop_front();
        }
        let cut = 1 + cut % bytes.len();
        let rest = bytes.split_off(cut);
        if !rest.is_empty() {
            items.push_front(Item::Bytes(rest));
        }
        if items.is_empty() {
            self.channels.remove(&channel);
        }
        self.happen(channel, Item::Bytes(bytes));
    }

    fn happen(&mut self, (node, conn, _): Channel, item: Item) {
        if let Item::CloseLane(link, lane) = item {
            self.nodes[node].links.get_mut(&link).unwrap().lanes.remove(&lane);
            self.close_end(node, conn);
            return self.event(node, PeerEvent::LaneClosed { link, lane });
        }
        let Some(end) = self.nodes[node].ends.get(&conn) else { return };
        match (item, end.owner.clone()) {
            (Item::Accepted, _) => self.event(node, PeerEvent::Accepted { conn }),
            (Item::Connected, _) => self.event(node, PeerEvent::Connected { conn }),
            (Item::Bytes(bytes), Owner::Core0) => {
                self.event(node, PeerEvent::Received { conn, bytes });
            }
            (Item::Bytes(bytes), Owner::Lane(link, lane)) => {
                let seen = self.nodes[node].links.get_mut(&link).unwrap();
                seen.received.get_mut(&lane).unwrap().extend(bytes);
            }
            (Item::Closed(reason), Owner::Core0) => {
                self.nodes[node].ends.remove(&conn);
                self.event(node, PeerEvent::Closed { conn, reason });
            }
            (Item::Closed(reason), Owner::Lane(link, lane)) => {
                let reason = reason.to_string();
                self.event(
                    node,
                    PeerEvent::LaneLost { link, lane, loss: LaneLoss::Stream, reason },
                );
            }
            (Item::CloseLane(..), _) => unreachable!("handled above"),
        }
    }

    /// Lets everything happen, oldest channel first.
    pub(super) fn settle(&mut self) {
        let mut left = 100_000;
        while self.choices() > 0 {
            self.deliver(0);
            left -= 1;
            assert!(left > 0, "the nodes never come to rest");
        }
    }

    /// Moves the clock by `by`, letting every timer fire at its time and settling after each.
    pub(super) fn pass(&mut self, by: Duration) {
        let until = self.now + by;
        loop {
            self.settle();
            let due = self.nodes.iter().map(|n| n.machine.next_deadline()).min().unwrap();
            if due > until {
                break;
            }
            self.now = self.now.max(due);
            for node in 0..self.nodes.len() {
                self.event(node, PeerEvent::Tick);
            }
        }
        self.now = until;
    }

    /// Moves the clock to the next timer of any node and fires it. `false` when there is none.
    pub(super) fn fire_next(&mut self) -> bool {
        let due = self.nodes.iter().map(|n| n.machine.next_deadline()).min().unwrap();
        if due == Nanos::MAX {
            return false;
        }
        self.now = self.now.max(due);
        for node in 0..self.nodes.len() {
            self.event(node, PeerEvent::Tick);
        }
        true
    }

    /// Breaks the `n`th open stream (of all there are), with or without what is on its way;
    /// `false` when there is none.
    pub(super) fn cut(&mut self, n: usize, lose: bool) -> bool {
        let mut open = Vec::new();
        for (node, state) in self.nodes.iter().enumerate() {
            open.extend(
                state.ends.iter().filter(|(_, e)| e.remote.is_some()).map(|(c, _)| (node, *c)),
            );
        }
        if open.is_empty() {
            return false;
        }
        let (node, conn) = open[n % open.len()];
        let (there, far) = self.remote(node, conn).unwrap();
        for (node, conn) in [(node, conn), (there, far)] {
            self.nodes[node].ends.get_mut(&conn).unwrap().remote = None;
            if lose && let Some(items) = self.channels.get_mut(&(node, conn, false)) {
                items.retain(|item| !matches!(item, Item::Bytes(_)));
            }
            let reason = CloseReason::Failed("connection reset".to_owned());
            self.push((node, conn, false), Item::Closed(reason));
        }
        true
    }

    /// Breaks the streams of a link so that only `node` learns of it.
    pub(super) fn lose_silently(&mut self, node: usize, link: LinkId) {
        for conn in self.nodes[node].links[&link].lanes.clone().into_values() {
            let (there, far) = self.remote(node, conn).unwrap();
            self.nodes[there].ends.get_mut(&far).unwrap().remote = None;
            self.nodes[node].ends.get_mut(&conn).unwrap().remote = None;
        }
        let reason = "timed out".to_owned();
        self.event(node, PeerEvent::LaneLost { link, lane: 0, loss: LaneLoss::Stream, reason });
    }

    /// Ends a node's process: all it had is closed, and nobody answers.
    pub(super) fn kill(&mut self, node: usize) {
        let conns: Vec<_> = self.nodes[node].ends.keys().copied().collect();
        for conn in conns {
            self.close_end(node, conn);
        }
        self.channels.retain(|(at, _, _), _| *at != node);
        self.nodes[node].listening = false;
        self.nodes[node].links.clear();
        self.nodes[node].machine = peers(self.nodes[node].machine.config.clone());
    }

    /// Starts a node afresh in the place of one that was killed.
    pub(super) fn restart(&mut self, node: usize, config: PeerConfig) {
        self.kill(node);
        self.nodes[node] = Node::new(config);
    }

    /// Whether a node accepts dials.
    pub(super) fn listen(&mut self, node: usize, listening: bool) {
        self.nodes[node].listening = listening;
    }

    /// Opens a stream to a node from nowhere; what it says is given with [`Net::say`].
    pub(super) fn stranger(&mut self, node: usize) -> ConnId {
        let conn = self.new_conn();
        self.nodes[node].ends.insert(conn, End { owner: Owner::Core0, remote: None });
        self.event(node, PeerEvent::Accepted { conn });
        conn
    }

    pub(super) fn say(&mut self, node: usize, conn: ConnId, bytes: &[u8]) {
        self.event(node, PeerEvent::Received { conn, bytes: bytes.to_vec() });
    }

    pub(super) fn is_open(&self, node: usize, conn: ConnId) -> bool {
        self.nodes[node].ends.contains_key(&conn)
    }

    /// Checks that both nodes have one link, the same, up, and that what its lanes carried came
    /// over whole. Returns whether node `a` dialled it.
    pub(super) fn assert_linked(&self, a: usize, b: usize) -> bool {
        let one = |node: usize, other: usize| {
            let other = &self.nodes[other].machine.config.identity;
            let mut links: Vec<_> = self.nodes[node].links.iter().collect();
            links.retain(|(_, l)| l.info.peer.rid == other.rid);
            assert_eq!(links.len(), 1, "node {node} has {links:#?}");
            let (id, link) = links[0];
            assert!(link.up && link.closing.is_none(), "{link:?}");
            assert_eq!(link.info.peer, *other);
            assert_eq!(self.nodes[node].machine.link_to(&other.rid).unwrap().0, *id);
            link.clone()
        };
        let (here, there) = (one(a, b), one(b, a));
        assert_ne!(here.info.dialed_by_us, there.info.dialed_by_us);
        for (lane, conn) in &here.lanes {
            assert_eq!(self.remote(a, *conn).unwrap(), (b, there.lanes[lane]));
            assert_eq!(here.received[lane], APP);
            assert_eq!(there.received[lane], APP);
        }
        here.info.dialed_by_us
    }

    /// Checks that every need was answered.
    pub(super) fn assert_needs_answered(&self) {
        for node in &self.nodes {
            assert!(node.unanswered.values().all(|n| *n == 0), "{:?}", node.unanswered);
        }
    }
}

#![forbid(unsafe_code)]
//! Doors to test with, and what stands on the other side of them.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use homing::env::{CloseReason, ConnId, Endpoint, Env, Event, LeaseView};
use homing::exec::idle::Idle;
use homing::node::real::{RealEnv, RealNode, RealParts};
use homing::time::Nanos;
use homing::transport::driver::Driver;
use homing::transport::listen::BoundListener;
use tempfile::TempDir;

/// What streams run over.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Net {
    Tcp,
    Unix,
}

/// Parts of a node without a Store.
pub(crate) fn parts(cores: u16, listener: Option<BoundListener>, idle: Idle) -> RealParts {
    let lease = LeaseView { admission_deadline: Nanos::MAX, fenced: false };
    RealParts {
        cores,
        listener,
        submit_store: Arc::new(|_, _, _, _| panic!("no Store call is made here")),
        read_lease: Arc::new(move || lease),
        idle,
    }
}

/// Free endpoints in a directory that goes with this value.
pub(crate) struct Place {
    net: Net,
    dir: TempDir,
}

impl Place {
    pub(crate) fn new(net: Net) -> Self {
        Self { net, dir: tempfile::tempdir().unwrap() }
    }

    /// An endpoint to listen on.
    pub(crate) fn endpoint(&self, name: &str) -> Endpoint {
        match self.net {
            Net::Tcp => "tcp://127.0.0.1:0".parse().unwrap(),
            Net::Unix => Endpoint::Unix(self.dir.path().join(name)),
        }
    }

    /// An endpoint on which nobody listens.
    pub(crate) fn dead_endpoint(&self) -> Endpoint {
        // The file of the Unix socket is gone, the port of the TCP one not taken again so soon.
        BoundListener::bind(&self.endpoint("dead")).unwrap().local_endpoint().clone()
    }

    /// A node of `cores` cores that listens, all its cores in this thread.
    pub(crate) fn node<D: Driver>(&self, name: &str, cores: u16) -> (Vec<Side<D>>, Endpoint) {
        let listener = BoundListener::bind(&self.endpoint(name)).unwrap();
        let endpoint = listener.local_endpoint().clone();
        let node = RealNode::new(parts(cores, Some(listener), Idle::Park)).unwrap();
        (node.envs.into_iter().map(Side::new).collect(), endpoint)
    }

    /// One core that listens.
    pub(crate) fn side<D: Driver>(&self, name: &str) -> (Side<D>, Endpoint) {
        let (mut sides, endpoint) = self.node(name, 1);
        (sides.remove(0), endpoint)
    }

    /// A core with a stream to an ordinary socket that it accepted.
    pub(crate) fn accepted<D: Driver>(&self) -> (Side<D>, ConnId, Raw) {
        let (mut side, endpoint) = self.side("accepting");
        let raw = Raw::dial(&endpoint);
        let conn = side.wait_accepted();
        (side, conn, raw)
    }

    /// A core with a stream that it dialled to an ordinary socket with small buffers.
    pub(crate) fn dialled<D: Driver>(&self) -> (Side<D>, ConnId, Raw) {
        let listener = RawListener::bind(&self.endpoint("raw"));
        let (mut side, _) = self.side("dialling");
        let conn = side.env.dial(&listener.endpoint);
        side.wait_connected(conn);
        (side, conn, listener.accept())
    }

    /// Two cores of two nodes and the stream between them: dialler first.
    pub(crate) fn pair<D: Driver>(&self) -> ((Side<D>, ConnId), (Side<D>, ConnId)) {
        let (mut a, _) = self.side("a");
        let (mut b, endpoint) = self.side("b");
        let a_conn = a.env.dial(&endpoint);
        a.wait_connected(a_conn);
        let b_conn = b.wait_accepted();
        ((a, a_conn), (b, b_conn))
    }
}

/// What became of one stream so far, as its core was told.
#[derive(Debug, Default)]
pub(crate) struct Story {
    pub(crate) connected: u32,
    pub(crate) accepted: u32,
    pub(crate) adopted: Option<u64>,
    pub(crate) received: Vec<u8>,
    pub(crate) closed: Vec<CloseReason>,
}

/// A core's door and what came through it.
pub(crate) struct Side<D> {
    pub(crate) env: RealEnv<u64, D>,
    pub(crate) stories: BTreeMap<ConnId, Story>,
    pub(crate) mail: Vec<u64>,
    events: Vec<Event<u64>>,
}

impl<D: Driver> Side<D> {
    pub(crate) fn new(env: RealEnv<u64, D>) -> Self {
        Self { env, stories: BTreeMap::new(), mail: Vec::new(), events: Vec::new() }
    }

    /// Polls once; gives how much happened. Checks what holds for every stream at every time.
    pub(crate) fn poll(&mut self, park_until: Nanos) -> usize {
        self.env.poll(&mut self.events, park_until);
        let count = self.events.len();
        let mut told = Vec::new();
        for event in self.events.drain(..) {
            let conn = match &event {
                Event::Mail(mail) => {
                    self.mail.push(*mail);
                    continue;
                }
                Event::Store { .. } => panic!("{event:?}"),
                Event::Accepted { conn }
                | Event::Connected { conn }
                | Event::Adopted { conn, .. }
                | Event::Received { conn, .. }
                | Event::Closed { conn, .. } => *conn,
            };
            assert!(!told.contains(&conn), "two events of one stream in one poll: {event:?}");
            told.push(conn);
            let story = self.stories.entry(conn).or_default();
            assert!(story.closed.is_empty(), "{event:?} after the end");
            match event {
                Event::Accepted { .. } => {
                    story.accepted += 1;
                    assert!(story.accepted == 1 && story.received.is_empty());
                }
                Event::Connected { .. } => {
                    story.connected += 1;
                    assert!(story.connected == 1 && story.received.is_empty());
                }
                Event::Adopted { tag, unread, .. } => {
                    assert!(story.adopted.is_none() && story.received.is_empty());
                    story.adopted = Some(tag);
                    story.received = unread;
                }
                Event::Received { bytes, .. } => {
                    assert!(!bytes.is_empty());
                    story.received.extend(bytes);
                }
                Event::Closed { reason, .. } => story.closed.push(reason),
                Event::Mail(_) | Event::Store { .. } => unreachable!(),
            }
        }
        count
    }

    pub(crate) fn story(&self, conn: ConnId) -> &Story {
        static NOTHING: Story = Story {
            connected: 0,
            accepted: 0,
            adopted: None,
            received: Vec::new(),
            closed: Vec::new(),
        };
        self.stories.get(&conn).unwrap_or(&NOTHING)
    }

    pub(crate) fn received(&self, conn: ConnId) -> &[u8] {
        &self.story(conn).received
    }

    pub(crate) fn is_closed(&self, conn: ConnId) -> bool {
        !self.story(conn).closed.is_empty()
    }

    /// Polls until `done`, waiting in between.
    pub(crate) fn wait(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        while !done(self) {
            self.poll(Nanos::MAX);
        }
    }

    /// Polls what is there already, several times over. A core that says it has nothing else to do
    /// asks its driver each time.
    pub(crate) fn settle(&mut self) {
        for _ in 0..50 {
            let soon = self.env.now() + Duration::from_micros(20);
            self.poll(soon);
        }
    }

    /// Polls until nothing is unsent, which no event tells.
    pub(crate) fn wait_sent(&mut self, conn: ConnId) {
        while self.env.unsent_bytes(conn) > 0 {
            let soon = self.env.now() + Duration::from_millis(1);
            self.poll(soon);
        }
    }

    /// Nothing happens now, and the core waits for its time without using the processor.
    pub(crate) fn assert_sleeps(&mut self) {
        const WAIT: Duration = Duration::from_millis(300);
        let cpu_ns = || {
            let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            time.tv_sec * 1_000_000_000 + time.tv_nsec
        };
        let (start, cpu_start_ns) = (self.env.now(), cpu_ns());
        assert_eq!(self.poll(start + WAIT), 0);
        let busy_ns = cpu_ns() - cpu_start_ns;
        let waited = self.env.now().since(start);
        assert!(waited >= WAIT, "came back after {waited:?}");
        assert!(busy_ns < 100_000_000, "{busy_ns} ns of {waited:?} on the processor");
    }

    pub(crate) fn wait_connected(&mut self, conn: ConnId) {
        self.wait(|side| side.story(conn).connected == 1);
    }

    pub(crate) fn wait_closed(&mut self, conn: ConnId) -> CloseReason {
        self.wait(|side| side.is_closed(conn));
        self.story(conn).closed[0].clone()
    }

    /// Waits for a stream that was not known before.
    pub(crate) fn wait_accepted(&mut self) -> ConnId {
        let known = self.stories.len();
        self.wait(|side| side.stories.len() > known);
        let (conn, story) = self.stories.last_key_value().unwrap();
        assert_eq!(story.accepted, 1);
        *conn
    }

    /// Waits for a stream that another core hands over.
    pub(crate) fn wait_adopted(&mut self, tag: u64) -> ConnId {
        loop {
            let found = self.stories.iter().find(|(_, story)| story.adopted == Some(tag));
            if let Some((conn, _)) = found {
                return *conn;
            }
            self.poll(Nanos::MAX);
        }
    }

    pub(crate) fn write(&mut self, conn: ConnId, bytes: &[u8]) {
        let mut bytes = bytes.to_vec();
        self.env.write(conn, &mut bytes);
        assert!(bytes.is_empty());
    }
}

/// Polls several cores in this thread until `done`.
pub(crate) fn pump<D: Driver>(
    sides: &mut [&mut Side<D>],
    mut done: impl FnMut(&mut [&mut Side<D>]) -> bool,
) {
    while !done(sides) {
        let happened: usize = sides.iter_mut().map(|side| side.poll(Nanos::ZERO)).sum();
        if happened == 0 {
            let soon = sides[0].env.now() + Duration::from_millis(1);
            sides[0].poll(soon);
        }
    }
}

/// Bytes that show where they belong: no two nearby stretches are equal.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    let mut word = 0x1234_5678_9ABC_DEF1u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        bytes.extend(word.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Compares long byte strings without printing them.
#[track_caller]
pub(crate) fn assert_bytes(got: &[u8], expected: &[u8]) {
    if got != expected {
        let at = got.iter().zip(expected).position(|(g, e)| g != e);
        panic!("{} bytes, expected {}; first difference {at:?}", got.len(), expected.len());
    }
}

/// An ordinary blocking socket.
pub(crate) enum Raw {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Raw {
    pub(crate) fn dial(endpoint: &Endpoint) -> Self {
        match endpoint {
            Endpoint::Tcp(addr) => {
                let stream = TcpStream::connect(addr).unwrap();
                stream.set_nodelay(true).unwrap();
                Self::Tcp(stream)
            }
            Endpoint::Unix(path) => Self::Unix(UnixStream::connect(path).unwrap()),
        }
    }

    /// Closes in such a way that the other side sees a reset, whatever the kind.
    pub(crate) fn reset(self) {
        match &self {
            Self::Tcp(stream) => {
                let linger = Some(Duration::ZERO);
                rustix::net::sockopt::set_socket_linger(stream, linger).unwrap();
            }
            // A Unix socket resets its peer when it is closed with bytes unread: see that there are.
            Self::Unix(stream) => {
                let mut one = [std::mem::MaybeUninit::uninit()];
                let flags = rustix::net::RecvFlags::PEEK;
                let (peeked, _) = rustix::net::recv(stream, &mut one, flags).unwrap();
                assert_eq!(peeked.0.len(), 1);
            }
        }
    }

    pub(crate) fn read_to_end(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        Read::read_to_end(self, &mut bytes).unwrap();
        bytes
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Read for Raw {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(bytes),
            Self::Unix(stream) => stream.read(bytes),
        }
    }
}

impl Write for Raw {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// An ordinary listener whose streams have the smallest buffers the kernel gives.
pub(crate) struct RawListener {
    kind: RawListenerKind,
    pub(crate) endpoint: Endpoint,
}

enum RawListenerKind {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl RawListener {
    pub(crate) fn bind(endpoint: &Endpoint) -> Self {
        match endpoint {
            Endpoint::Tcp(addr) => {
                let listener = TcpListener::bind(addr).unwrap();
                small_buffers(listener.as_fd());
                let addr: SocketAddr = listener.local_addr().unwrap();
                Self { kind: RawListenerKind::Tcp(listener), endpoint: Endpoint::Tcp(addr) }
            }
            Endpoint::Unix(path) => {
                let listener = UnixListener::bind(path).unwrap();
                Self { kind: RawListenerKind::Unix(listener), endpoint: endpoint.clone() }
            }
        }
    }

    pub(crate) fn accept(&self) -> Raw {
        let raw = match &self.kind {
            RawListenerKind::Tcp(listener) => Raw::Tcp(listener.accept().unwrap().0),
            RawListenerKind::Unix(listener) => Raw::Unix(listener.accept().unwrap().0),
        };
        small_buffers(raw.fd());
        raw
    }
}

fn small_buffers(socket: BorrowedFd<'_>) {
    rustix::net::sockopt::set_socket_send_buffer_size(socket, 1).unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(socket, 1).unwrap();
}

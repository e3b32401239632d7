#![forbid(unsafe_code)]
//! Segments of the baselines: the same bytes moved with nothing around them.
//!
//! Between two processes: a stream socket, read and written as the node's cores do (they block, or
//! they look again and again), nothing decoded. Between two threads: two queues. On one thread: a
//! queue and a call through a pointer.

use std::collections::VecDeque;
use std::future::Future;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crossbeam_queue::SegQueue;
use serde::{Deserialize, Serialize};

use super::actors::{BATCH, Op};
use super::node_work::Wait;
use super::samples::{Outcome, Samples, answer_to, fold, hash_of_answers};

/// The kind of socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Link {
    Tcp,
    Unix,
}

impl Link {
    pub(crate) const BOTH: [Self; 2] = [Self::Tcp, Self::Unix];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Unix => "Unix",
        }
    }
}

/// A segment between two processes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct BareWork {
    /// Where a Unix socket is put.
    pub(crate) dir: PathBuf,
    pub(crate) link: Link,
    pub(crate) wait: Wait,
    /// Size of a request or a one-way frame; at least 8.
    pub(crate) request_bytes: usize,
    /// Size of an answer; at least 8. Of a stream: of the acknowledgement of a batch.
    pub(crate) reply_bytes: usize,
    /// Frames in one write; 1 is a ping-pong.
    pub(crate) batch: u64,
    /// Batches that may be under way.
    pub(crate) window: u64,
    pub(crate) warm_up: u64,
    pub(crate) ops: u64,
}

/// A stream socket that waits in one of two ways.
struct Socket {
    stream: Box<dyn ReadWrite>,
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

impl Socket {
    fn tcp(stream: TcpStream, wait: Wait) -> Self {
        stream.set_nodelay(true).expect("no delay");
        stream.set_nonblocking(wait == Wait::Spin).expect("a mode");
        Self { stream: Box::new(stream) }
    }

    fn unix(stream: UnixStream, wait: Wait) -> Self {
        stream.set_nonblocking(wait == Wait::Spin).expect("a mode");
        Self { stream: Box::new(stream) }
    }

    fn accept(work: &BareWork, ready: impl FnOnce(&str)) -> Self {
        match work.link {
            Link::Tcp => {
                let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
                ready(&listener.local_addr().expect("an address").to_string());
                Self::tcp(listener.accept().expect("a peer").0, work.wait)
            }
            Link::Unix => {
                let path = work.dir.join("bare.sock");
                let listener = UnixListener::bind(&path).expect("a path");
                ready(&path.display().to_string());
                Self::unix(listener.accept().expect("a peer").0, work.wait)
            }
        }
    }

    fn connect(work: &BareWork, address: &str) -> Self {
        match work.link {
            Link::Tcp => Self::tcp(TcpStream::connect(address).expect("a peer"), work.wait),
            Link::Unix => Self::unix(UnixStream::connect(address).expect("a peer"), work.wait),
        }
    }

    /// Reads what is there, at least one byte; 0 at the end.
    fn read(&mut self, into: &mut [u8]) -> usize {
        loop {
            match self.stream.read(into) {
                Ok(count) => return count,
                Err(e) if e.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return 0,
                Err(e) => panic!("reading failed: {e}"),
            }
        }
    }

    /// Fills `into`; `false` when the stream ended.
    fn read_all(&mut self, into: &mut [u8]) -> bool {
        let mut filled = 0;
        while filled < into.len() {
            match self.read(&mut into[filled..]) {
                0 => return false,
                count => filled += count,
            }
        }
        true
    }

    fn write_all(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(e) if e.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
                Err(e) => panic!("writing failed: {e}"),
            }
        }
    }
}

fn number_at(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |b| u64::from_le_bytes(*b))
}

/// The answering process.
pub(crate) fn serve(work: &BareWork, ready: impl FnOnce(&str)) {
    let mut socket = Socket::accept(work, ready);
    let mut batch = vec![0; work.request_bytes * work.batch as usize];
    let mut reply = vec![0; work.reply_bytes];
    while socket.read_all(&mut batch) {
        let frames = batch.chunks_exact(work.request_bytes);
        let answer = frames.fold(0, |hash, frame| fold(hash, answer_to(number_at(frame))));
        let answer = if work.batch == 1 { answer_to(number_at(&batch)) } else { answer };
        reply[..8].copy_from_slice(&answer.to_le_bytes());
        socket.write_all(&reply);
    }
}

/// The calling process: a ping-pong, or batches with a window of them under way.
pub(crate) fn call(work: &BareWork, address: &str) -> Outcome {
    let mut socket = Socket::connect(work, address);
    exchange(&mut socket, work, work.warm_up);
    let (samples, hash) = exchange(&mut socket, work, work.ops);
    if work.batch == 1 && work.window == 1 {
        assert_eq!(hash, hash_of_answers(work.ops), "what was answered is wrong");
    }
    samples.finish(hash)
}

fn exchange(socket: &mut Socket, work: &BareWork, ops: u64) -> (Samples, u64) {
    let mut batch = vec![0; work.request_bytes * work.batch as usize];
    let mut reply = vec![0; work.reply_bytes];
    let (mut hash, mut under_way) = (0, 0);
    let mut samples = Samples::start(work.batch);
    for first in (0..ops).step_by(work.batch as usize) {
        samples.begin();
        for (frame, number) in batch.chunks_exact_mut(work.request_bytes).zip(first..) {
            frame[..8].copy_from_slice(&number.to_le_bytes());
        }
        socket.write_all(&batch);
        under_way += 1;
        if under_way == work.window {
            assert!(socket.read_all(&mut reply), "the peer is gone");
            hash = fold(hash, number_at(&reply));
            under_way -= 1;
        }
        samples.end();
    }
    for _ in 0..under_way {
        assert!(socket.read_all(&mut reply), "the peer is gone");
        hash = fold(hash, number_at(&reply));
    }
    (samples, hash)
}

/// A segment of the local baselines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalBareWork {
    pub(crate) op: Op,
    pub(crate) wait: Wait,
    pub(crate) warm_up: u64,
    pub(crate) ops: u64,
}

type Message = [u64; 8];

fn message(number: u64) -> Message {
    [number; 8]
}

/// One thread: a queue and a call through a pointer; for requests a boxed future as well.
pub(crate) fn one_thread(work: LocalBareWork) -> Outcome {
    let mut handler: Box<dyn FnMut(Message) -> Message> =
        Box::new(|message| self::message(answer_to(message[0])));
    one_thread_part(work.op, work.warm_up, &mut handler);
    let (samples, hash) = one_thread_part(work.op, work.ops, &mut handler);
    assert_eq!(hash, hash_of_answers(work.ops), "what was answered is wrong");
    samples.finish(hash)
}

fn one_thread_part(
    op: Op,
    ops: u64,
    handler: &mut Box<dyn FnMut(Message) -> Message>,
) -> (Samples, u64) {
    let mut queue: VecDeque<Message> = VecDeque::new();
    let mut hash = 0;
    let batch = if op == Op::Send { BATCH } else { 1 };
    let mut samples = Samples::start(batch);
    let mut cx = Context::from_waker(Waker::noop());
    for first in (0..ops).step_by(batch as usize) {
        samples.begin();
        for number in first..first + batch {
            std::hint::black_box(&mut queue).push_back(message(number));
        }
        while let Some(message) = std::hint::black_box(&mut queue).pop_front() {
            let answer = if op == Op::Send {
                handler(message)
            } else {
                let answer = handler(message);
                let mut turn: Pin<Box<dyn Future<Output = Message>>> =
                    Box::pin(async move { std::hint::black_box(answer) });
                match turn.as_mut().poll(&mut cx) {
                    Poll::Ready(answer) => answer,
                    Poll::Pending => unreachable!("it waits for nothing"),
                }
            };
            hash = fold(hash, answer[0]);
        }
        samples.end();
    }
    (samples, hash)
}

/// A queue whose one reader spins or parks.
struct Queue {
    queue: SegQueue<Message>,
    reader: std::sync::OnceLock<std::thread::Thread>,
    wait: Wait,
}

impl Queue {
    fn new(wait: Wait) -> Self {
        Self { queue: SegQueue::new(), reader: std::sync::OnceLock::new(), wait }
    }

    fn push(&self, message: Message) {
        self.queue.push(message);
    }

    /// Wakes the reader when it parks.
    fn flush(&self) {
        if let (Wait::Park, Some(reader)) = (self.wait, self.reader.get()) {
            reader.unpark();
        }
    }

    fn pop(&self) -> Message {
        if self.wait == Wait::Park {
            self.reader.get_or_init(std::thread::current);
        }
        loop {
            match (self.queue.pop(), self.wait) {
                (Some(message), _) => return message,
                (None, Wait::Spin) => std::hint::spin_loop(),
                (None, Wait::Park) => std::thread::park(),
            }
        }
    }
}

/// What ends the answering thread.
const END: u64 = u64::MAX;

/// Two threads and a queue each way. Sends are answered once per batch.
pub(crate) fn two_threads(work: LocalBareWork) -> Outcome {
    let (there, back) = (Queue::new(work.wait), Queue::new(work.wait));
    let batch = if work.op == Op::Send { BATCH } else { 1 };
    let part = |ops: u64| {
        let mut hash = 0;
        let mut samples = Samples::start(batch);
        for first in (0..ops).step_by(batch as usize) {
            samples.begin();
            for number in first..first + batch {
                there.push(message(number));
            }
            there.flush();
            let answer = back.pop()[0];
            samples.end();
            hash = if batch == 1 { fold(hash, answer) } else { answer };
        }
        (samples, hash)
    };
    std::thread::scope(|scope| {
        scope.spawn(|| answer_all(&there, &back, batch));
        part(work.warm_up);
        there.push(message(END - 1));
        let (samples, hash) = part(work.ops);
        there.push(message(END));
        there.flush();
        assert_eq!(hash, hash_of_answers(work.ops), "what was answered is wrong");
        samples.finish(hash)
    })
}

/// Answers each batch: with the answer when it is of one message, with the hash so far otherwise.
fn answer_all(there: &Queue, back: &Queue, batch: u64) {
    let (mut hash, mut left) = (0, batch);
    loop {
        let number = there.pop()[0];
        match number {
            END => return,
            // The warm-up is over.
            number if number == END - 1 => hash = 0,
            number => {
                let answer = answer_to(number);
                hash = fold(hash, answer);
                left -= 1;
                if left == 0 {
                    left = batch;
                    back.push(message(if batch == 1 { answer } else { hash }));
                    back.flush();
                }
            }
        }
    }
}

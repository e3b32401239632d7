#![forbid(unsafe_code)]
//! One node process of the demo: carries out orders from its standard input, reports on its
//! standard output, ends when the input ends.

use std::future::{Future, IntoFuture};
use std::io::{self, BufReader};
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use homing::prelude::*;
use homing::{Counter, Requesting};

use super::actor::{Ask, Begin, Note, Sabotage, Scribe, actor_id};
use super::driver::{Meter, Sender};
use super::ledger::{Comparison, SenderLog, Verdict};
use super::talk::{Config, Order, Report, Tick, hear, say};
use super::window::Window;

/// How often a process says how far it is.
const TICK: Duration = Duration::from_millis(250);
/// Creations and questions on their way at once.
const CONTROL_WINDOW: usize = 256;
/// How long the node may take to end in order.
const SHUTDOWN_TIME: Duration = Duration::from_secs(10);

/// What the process waits for.
enum Event {
    Order(Order),
    /// The demo that started this process is gone, or said what cannot be understood.
    End(String),
    /// A thread of the running order has ended.
    Worked,
}

/// Sends `Worked` when its thread ends, by a panic too.
struct Worked(mpsc::Sender<Event>);

impl Drop for Worked {
    fn drop(&mut self) {
        let _ = self.0.send(Event::Worked);
    }
}

type Failure = String;

/// A running node with what it counts.
struct Process {
    node: Node,
    config: Config,
    meter: Arc<Meter>,
    senders: Vec<Sender>,
    events: mpsc::Receiver<Event>,
    to_events: mpsc::Sender<Event>,
}

/// The process, from its first order to its end.
pub(crate) fn run() -> ExitCode {
    let (to_events, events) = mpsc::channel();
    let orders = to_events.clone();
    thread::spawn(move || listen(&orders));
    match serve(events, to_events) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            // Nobody may be there to hear it; standard error is kept too.
            let _ = say(&mut io::stdout().lock(), &Report::Failed { why: why.clone() });
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn listen(orders: &mpsc::Sender<Event>) {
    let mut input = BufReader::new(io::stdin());
    loop {
        let (event, is_last) = match hear(&mut input) {
            Ok(Some(order)) => (Event::Order(order), false),
            Ok(None) => (Event::End("the demo that started this node is gone".into()), true),
            Err(e) => (Event::End(format!("the order cannot be read: {e}")), true),
        };
        if orders.send(event).is_err() || is_last {
            return;
        }
    }
}

fn report(report: &Report) -> Result<(), Failure> {
    say(&mut io::stdout().lock(), report).map_err(|e| format!("the report cannot be written: {e}"))
}

fn serve(events: mpsc::Receiver<Event>, to_events: mpsc::Sender<Event>) -> Result<(), Failure> {
    let config = match events.recv() {
        Ok(Event::Order(Order::Start(config))) => config,
        Ok(Event::End(why)) => return Err(why),
        _ => return Err("the first order is not to start".into()),
    };
    let node = start(&config).map_err(|e| format!("the node does not start: {e}"))?;
    report(&Report::Started {
        endpoint: node.endpoint().to_string(),
        driver: node.driver().to_string(),
    })?;
    let meter = Arc::new(Meter::new());
    let senders = (0..config.senders)
        .map(|at| Sender::new(&node, &config, config.node * config.senders + at, meter.clone()))
        .collect();
    let mut process = Process { node, config, meter, senders, events, to_events };
    loop {
        let order = match process.events.recv() {
            Ok(Event::Order(order)) => order,
            Ok(Event::Worked) => continue,
            Ok(Event::End(why)) => return Err(why),
            Err(_) => return Ok(()),
        };
        let is_last = matches!(order, Order::Stop);
        let answer = process.carry_out(order)?;
        report(&answer)?;
        if is_last {
            return Ok(());
        }
    }
}

fn start(config: &Config) -> homing::Result<Node> {
    let builder = Node::builder("demo")
        .rid(&config.rid)
        .listen(&config.listen)
        .driver(config.driver.parse()?)
        .cores(config.cores)
        .store(LmdbStore::open(&config.store)?);
    if config.node < config.nodes {
        builder.actor::<Scribe>(|a| a.handles::<Note>().handles::<Ask>()).start()
    } else {
        builder.start()
    }
}

impl Process {
    fn carry_out(&mut self, order: Order) -> Result<Report, Failure> {
        self.meter.progress.store(0, Ordering::Relaxed);
        let (node, config, meter) = (self.node.clone(), self.config.clone(), self.meter.clone());
        match order {
            Order::Start(_) => Err("the node was started before".into()),
            Order::Create => {
                self.work_one(move || create(&node, &config, &meter))??;
                Ok(Report::Done)
            }
            Order::Drive { milliseconds } => {
                let time = Duration::from_millis(milliseconds);
                let senders = std::mem::take(&mut self.senders);
                let work = senders.into_iter().map(|sender| move || sender.drive(time));
                self.senders = self.work(work.collect())?;
                Ok(Report::Done)
            }
            Order::Settle => {
                let senders = std::mem::take(&mut self.senders);
                let work = senders.into_iter().map(|sender| move || sender.settle());
                self.senders = self.work(work.collect())?;
                self.senders.iter().try_for_each(|sender| self.write(sender.log()))?;
                Ok(Report::Settled { errors: self.meter.error_texts() })
            }
            Order::Ask => {
                let verdict = self.work_one(move || ask(&node, &config, &meter))??;
                Ok(Report::Asked(Box::new(verdict)))
            }
            Order::Stop => {
                self.work_one(move || homing::block_on(node.shutdown(SHUTDOWN_TIME)))?;
                Ok(Report::Done)
            }
        }
    }

    fn write(&self, log: &SenderLog) -> Result<(), Failure> {
        let path = self.config.log_file(log.sender);
        std::fs::write(&path, log.to_text())
            .map_err(|e| format!("the log {} cannot be written: {e}", path.display()))
    }

    fn work_one<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let mut ended = self.work(vec![work])?;
        ended.pop().ok_or_else(|| "the order had no work".into())
    }

    /// Runs each piece of work on a thread of its own, and says how far it is meanwhile.
    fn work<T: Send + 'static, W: FnOnce() -> T + Send + 'static>(
        &self,
        work: Vec<W>,
    ) -> Result<Vec<T>, Failure> {
        let spawn = |work: W| {
            let worked = Worked(self.to_events.clone());
            thread::spawn(move || {
                let _worked = worked;
                work()
            })
        };
        let threads: Vec<_> = work.into_iter().map(spawn).collect();
        let mut running = threads.len();
        while running > 0 {
            match self.events.recv_timeout(TICK) {
                Ok(Event::Worked) => running -= 1,
                Ok(Event::Order(order)) => {
                    return Err(format!("{order:?} came during another order"));
                }
                Ok(Event::End(why)) => return Err(why),
                Err(RecvTimeoutError::Timeout) => self.tick()?,
                Err(RecvTimeoutError::Disconnected) => return Err("nobody gives orders".into()),
            }
        }
        self.tick()?;
        let join = |thread: thread::JoinHandle<T>| {
            thread.join().map_err(|_| "a thread of the demo panicked".to_owned())
        };
        threads.into_iter().map(join).collect()
    }

    fn tick(&self) -> Result<(), Failure> {
        let counters = self.node.counters();
        report(&Report::Tick(Tick {
            progress: self.meter.progress.load(Ordering::Relaxed),
            sends: self.meter.sends.load(Ordering::Relaxed),
            requests: self.meter.requests.load(Ordering::Relaxed),
            errors: self.meter.errors.load(Ordering::Relaxed),
            latencies: self.meter.take_latencies(),
            cache_hits: counters.get(Counter::CacheHits),
            cache_misses: counters.get(Counter::CacheMisses),
            store_reads: counters.get(Counter::StoreReads),
            store_commits: counters.get(Counter::StoreCommits),
            frames: counters.get(Counter::FramesOut),
            credit_waits: counters.get(Counter::CreditWaits),
        }))
    }
}

/// The Actor whose deliveries are tampered with, when they are.
fn sabotage_of(config: &Config, actor: u32) -> Option<Sabotage> {
    config.sabotage.filter(|_| actor == config.actors / 2)
}

/// Creates this node's share of the Actors, here.
fn create(node: &Node, config: &Config, meter: &Meter) -> Result<(), Failure> {
    type Creation = Pin<Box<dyn Future<Output = homing::Result<CreateOutcome>> + Send>>;
    let check = |(actor, outcome): (u32, homing::Result<CreateOutcome>)| {
        meter.step();
        match outcome {
            Ok(CreateOutcome::Created(_)) => Ok(()),
            other => Err(format!("{} was not created: {other:?}", actor_id(actor))),
        }
    };
    let mut window: Window<u32, Creation> = Window::new(CONTROL_WINDOW);
    for actor in (config.node..config.actors).step_by(config.nodes as usize) {
        while window.is_full() {
            window.next().map_or(Ok(()), check)?;
        }
        let begin = Begin { sabotage: sabotage_of(config, actor) };
        let creation = node.actors().create::<Scribe>(actor_id(actor), begin);
        window.push(actor, creation.into_future()).map_or(Ok(()), check)?;
    }
    while let Some(ended) = window.next() {
        check(ended)?;
    }
    Ok(())
}

/// Reads the logs of all senders.
fn read_logs(config: &Config) -> Result<Vec<SenderLog>, Failure> {
    let read = |sender: u32| {
        let path = config.log_file(sender);
        let fail = |e: String| format!("the log {}: {e}", path.display());
        let text = std::fs::read_to_string(&path).map_err(|e| fail(e.to_string()))?;
        let log = SenderLog::from_text(&text).map_err(fail)?;
        if (log.sender, log.endings.len()) == (sender, config.actors as usize) {
            Ok(log)
        } else {
            Err(fail(format!(
                "it is of sender {} and {} Actors, not of {sender} and {}",
                log.sender,
                log.endings.len(),
                config.actors
            )))
        }
    };
    (0..config.nodes * config.senders).map(read).collect()
}

/// Asks every Actor what it handled and compares.
fn ask(node: &Node, config: &Config, meter: &Meter) -> Result<Verdict, Failure> {
    let mut comparison = Comparison::new(read_logs(config)?, config.nodes, config.senders);
    let mut window: Window<u32, Requesting<Ask>> = Window::new(CONTROL_WINDOW);
    let mut compare = |(actor, answer): (u32, homing::Result<super::ledger::Handled>)| {
        meter.step();
        match answer {
            Ok(handled) => comparison.actor(actor, &handled),
            Err(e) => comparison.silent(actor, &e.to_string()),
        }
    };
    for actor in 0..config.actors {
        while window.is_full() {
            window.next().into_iter().for_each(&mut compare);
        }
        let question = node.actor(actor_id(actor)).request(Ask).into_future();
        window.push(actor, question).into_iter().for_each(&mut compare);
    }
    while let Some(answered) = window.next() {
        compare(answered);
    }
    Ok(comparison.verdict())
}

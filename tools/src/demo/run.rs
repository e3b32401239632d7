#![forbid(unsafe_code)]
//! One run: the phases one after another, over all node processes at once.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use super::args::{Args, Listen};
use super::cluster::{Event, NodeProcess};
use super::figures::{Figures, grouped};
use super::ledger::Verdict;
use super::progress::Progress;
use super::summary::{Load, Summary};
use super::talk::{Config, Order, Report};

/// How often progress is shown.
const REDRAW: Duration = Duration::from_millis(100);
/// Steps per second of the bar that shows time.
const STEPS_PER_SECOND: u64 = 10;
/// The rid of the node that asks in the end.
const ASKER: &str = "asker";

/// Why a run ended before its time.
pub(crate) enum Stop {
    Failed(String),
    Signal(i32),
}

/// What a phase counts.
#[derive(Clone, Copy)]
enum Steps {
    /// What the processes report.
    Reported,
    /// How many processes have carried their order out.
    Answers,
    /// The time that has passed.
    Time,
}

/// A run on its way. Dropping it ends all its processes.
pub(crate) struct Run<'a> {
    args: &'a Args,
    dir: &'a Path,
    events: Receiver<Event>,
    to_events: Sender<Event>,
    nodes: Vec<NodeProcess>,
    figures: Figures,
    progress: Progress,
    /// The drivers the nodes use: one, unless the system changed its mind in between.
    drivers: BTreeSet<String>,
}

impl<'a> Run<'a> {
    pub(crate) fn new(
        args: &'a Args,
        dir: &'a Path,
        events: Receiver<Event>,
        to_events: Sender<Event>,
    ) -> Self {
        Self {
            args,
            dir,
            events,
            to_events,
            nodes: Vec::new(),
            figures: Figures::new(args.nodes as usize + 1),
            progress: Progress::new(),
            drivers: BTreeSet::new(),
        }
    }

    /// All phases. What the caller prints comes after the bar is gone.
    pub(crate) fn carry_out(&mut self) -> Result<Summary, Stop> {
        let outcome = self.phases();
        self.progress.abandon();
        outcome
    }

    fn phases(&mut self) -> Result<Summary, Stop> {
        let began = Instant::now();
        let nodes = 0..self.args.nodes as usize;
        self.start_nodes()?;
        let create_time = self.create(nodes.clone())?;
        let drive_time = self.drive(nodes.clone())?;
        let load = Load::new(&self.figures, create_time, drive_time);
        let errors = self.settle(nodes.clone())?;
        let verdict = self.ask()?;
        self.stop()?;
        let driver = self.drivers.iter().cloned().collect::<Vec<_>>().join(" and ");
        Ok(Summary { load, verdict, errors, driver, whole_time: began.elapsed() })
    }

    fn start_nodes(&mut self) -> Result<(), Stop> {
        let nodes = self.args.nodes;
        self.begin(&format!("starting {nodes} node processes"), u64::from(nodes));
        for node in 0..nodes {
            self.start_process(&format!("node-{node}"))?;
        }
        let started = self.wait(0..nodes as usize, Steps::Answers)?;
        self.progress.end();
        self.drivers.extend(started.iter().filter_map(|report| match report {
            Report::Started { driver, .. } => Some(driver.clone()),
            _ => None,
        }));
        self.say_started(0, &started);
        Ok(())
    }

    fn say_started(&self, first: usize, reports: &[Report]) {
        for (node, report) in self.nodes[first..].iter().zip(reports) {
            if let Report::Started { endpoint, driver } = report {
                self.progress.say(&format!(
                    "  {:<8} process {:<8} {driver:<6} {endpoint}",
                    node.name,
                    node.pid()
                ));
            }
        }
    }

    fn start_process(&mut self, rid: &str) -> Result<(), Stop> {
        let at = self.nodes.len();
        let mut process = NodeProcess::start(at, rid, &self.to_events).map_err(Stop::Failed)?;
        process.order(&Order::Start(self.config(at as u32, rid)));
        self.nodes.push(process);
        Ok(())
    }

    fn config(&self, node: u32, rid: &str) -> Config {
        let listen = match self.args.listen {
            Listen::Tcp => "tcp://127.0.0.1:0".to_owned(),
            Listen::Unix => format!("unix://{}", self.dir.join(format!("{rid}.sock")).display()),
        };
        Config {
            rid: rid.to_owned(),
            node,
            nodes: self.args.nodes,
            listen,
            driver: self.args.driver.name().to_owned(),
            cores: self.args.cores,
            store: self.dir.join("store"),
            logs: self.dir.to_owned(),
            actors: self.args.actors,
            senders: self.args.senders,
            window: self.args.window(),
            payload_bytes: self.args.payload as usize,
            sabotage: self.args.sabotage,
        }
    }

    fn create(&mut self, nodes: Range<usize>) -> Result<Duration, Stop> {
        let actors = u64::from(self.args.actors);
        self.begin(&format!("creating {} Actors", grouped(actors)), actors);
        self.order(nodes.clone(), || Order::Create);
        self.wait(nodes, Steps::Reported)?;
        Ok(self.progress.end())
    }

    fn drive(&mut self, nodes: Range<usize>) -> Result<Duration, Stop> {
        let seconds = self.args.seconds;
        self.begin("sending and requesting", seconds * STEPS_PER_SECOND);
        let milliseconds = seconds * 1000;
        self.order(nodes.clone(), || Order::Drive { milliseconds });
        self.wait(nodes, Steps::Time)?;
        Ok(self.progress.end())
    }

    fn settle(&mut self, nodes: Range<usize>) -> Result<Vec<String>, Stop> {
        let senders = u64::from(self.args.nodes) * u64::from(self.args.senders);
        self.begin("last message to every Actor", u64::from(self.args.actors) * senders);
        self.order(nodes.clone(), || Order::Settle);
        let mut all = BTreeMap::new();
        for report in self.wait(nodes, Steps::Reported)? {
            if let Report::Settled { errors } = report {
                all.extend(errors);
            }
        }
        self.progress.end();
        Ok(all.into_values().collect())
    }

    /// A fresh process asks and compares.
    fn ask(&mut self) -> Result<Verdict, Stop> {
        let actors = u64::from(self.args.actors);
        self.begin("asking every Actor", actors);
        let at = self.nodes.len();
        self.start_process(ASKER)?;
        let started = self.wait(at..at + 1, Steps::Reported)?;
        self.say_started(at, &started);
        self.order(at..at + 1, || Order::Ask);
        let asked = self.wait(at..at + 1, Steps::Reported)?;
        self.progress.end();
        match asked.into_iter().next() {
            Some(Report::Asked(verdict)) => Ok(*verdict),
            other => Err(Stop::Failed(format!("{ASKER} answered {other:?} and no verdict"))),
        }
    }

    fn stop(&mut self) -> Result<(), Stop> {
        let all = 0..self.nodes.len();
        self.begin("shutting down", all.len() as u64);
        self.order(all.clone(), || Order::Stop);
        self.nodes.iter_mut().for_each(|node| node.is_stopping = true);
        self.wait(all, Steps::Answers)?;
        self.nodes.iter_mut().try_for_each(NodeProcess::ended_well).map_err(Stop::Failed)?;
        self.progress.end();
        Ok(())
    }

    fn begin(&mut self, text: &str, total: u64) {
        self.figures.begin();
        self.progress.begin(text, total);
    }

    fn order(&mut self, nodes: Range<usize>, order: impl Fn() -> Order) {
        self.nodes[nodes].iter_mut().for_each(|node| node.order(&order()));
    }

    /// Waits until each of these processes has carried its order out; gives their answers.
    fn wait(&mut self, nodes: Range<usize>, steps: Steps) -> Result<Vec<Report>, Stop> {
        let first = nodes.start;
        let began = Instant::now();
        let mut answers: Vec<Option<Report>> = nodes.map(|_| None).collect();
        while answers.iter().any(Option::is_none) {
            match self.events.recv_timeout(REDRAW) {
                Ok(Event::Report(at, report)) => {
                    if let Some(answer) = self.hear(at, report)?
                        && let Some(place) = answers.get_mut(at.wrapping_sub(first))
                    {
                        *place = Some(answer);
                    }
                }
                Ok(Event::Gone(at, said)) => {
                    let answered = matches!(answers.get(at.wrapping_sub(first)), Some(Some(_)));
                    if !(self.nodes[at].is_stopping && answered) {
                        return Err(Stop::Failed(self.nodes[at].end(said.as_deref())));
                    }
                }
                Ok(Event::Signal(signal)) => return Err(Stop::Signal(signal)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Stop::Failed("nothing can be heard any more".into()));
                }
            }
            self.check_silence(first, &answers)?;
            let position = match steps {
                Steps::Reported => self.figures.progress(),
                Steps::Answers => answers.iter().flatten().count() as u64,
                Steps::Time => (began.elapsed().as_secs_f64() * STEPS_PER_SECOND as f64) as u64,
            };
            let has_load = matches!(steps, Steps::Time);
            self.progress.step(position, &mut self.figures, has_load);
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// Takes a report in; gives it back when it ends an order.
    fn hear(&mut self, at: usize, report: Report) -> Result<Option<Report>, Stop> {
        self.nodes[at].heard = Instant::now();
        match report {
            Report::Tick(tick) => {
                self.figures.tick(at, tick);
                Ok(None)
            }
            Report::Failed { why } => Err(Stop::Failed(self.nodes[at].end(Some(&why)))),
            answer => Ok(Some(answer)),
        }
    }

    /// A process that stands still is a failure like one that is gone. Each says something at least
    /// once a second, except while its node starts.
    fn check_silence(&self, first: usize, answers: &[Option<Report>]) -> Result<(), Stop> {
        let patience = Duration::from_secs(self.args.patience);
        let silent = self.nodes[first..]
            .iter()
            .zip(answers)
            .find(|(node, answer)| answer.is_none() && node.heard.elapsed() > patience);
        silent.map_or(Ok(()), |(node, _)| {
            Err(Stop::Failed(format!(
                "{} (process {}) has said nothing for {} s",
                node.name,
                node.pid(),
                patience.as_secs()
            )))
        })
    }
}

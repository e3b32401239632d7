#![forbid(unsafe_code)]
//! Who says what about which message: the senders' logs, what the Actors recorded, and the
//! comparison of the two.
//!
//! Messages are numbered from 1 per sender and Actor. A sender notes for each number how the
//! operation ended, as far as it can see. An Actor notes the numbers it handled, in the order in
//! which it handled them, and judges nothing. Only [`Comparison`] decides, from both.
//!
//! An operation that ended with an error may have run or not: it is excused when it was not
//! handled, never when it was handled twice or out of order.

use std::collections::BTreeMap;

use homing::ErrorKind;
use serde::{Deserialize, Serialize};

/// How an operation ended for its sender: one character of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Not yet.
    Pending,
    /// A send that was admitted.
    Admitted,
    /// A request that was answered.
    Replied,
    /// A request that was answered with another message's answer.
    Misanswered,
    /// An operation that ended with an error.
    Failed(ErrorKind),
}

impl Ending {
    pub(crate) fn to_byte(self) -> u8 {
        match self {
            Self::Pending => b'?',
            Self::Admitted => b'a',
            Self::Replied => b'r',
            Self::Misanswered => b'w',
            Self::Failed(kind) => b'A' + kind as u8,
        }
    }

    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            b'?' => Self::Pending,
            b'a' => Self::Admitted,
            b'r' => Self::Replied,
            b'w' => Self::Misanswered,
            _ => Self::Failed(ErrorKind::from_wire(byte.wrapping_sub(b'A'))?),
        })
    }

    /// What a sentence about the message says of its sender's side.
    fn told(self) -> &'static str {
        match self {
            Self::Pending => "never ended for its sender",
            Self::Admitted => "was admitted",
            Self::Replied => "was answered",
            Self::Misanswered => "got another message's answer",
            Self::Failed(_) => "ended with an error",
        }
    }
}

/// What one sender sent: per Actor, the ending of each number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SenderLog {
    pub(crate) sender: u32,
    /// By Actor; the ending of number n is at n - 1.
    pub(crate) endings: Vec<Vec<u8>>,
}

impl SenderLog {
    pub(crate) fn new(sender: u32, actors: u32) -> Self {
        Self { sender, endings: vec![Vec::new(); actors as usize] }
    }

    /// Notes a new message to `actor` and gives its number.
    pub(crate) fn submit(&mut self, actor: u32) -> u64 {
        let endings = &mut self.endings[actor as usize];
        endings.push(Ending::Pending.to_byte());
        endings.len() as u64
    }

    /// Notes how a message ended.
    pub(crate) fn end(&mut self, actor: u32, number: u64, ending: Ending) {
        self.endings[actor as usize][number as usize - 1] = ending.to_byte();
    }

    /// As text: the sender, then a line per Actor with a character per message.
    pub(crate) fn to_text(&self) -> String {
        let mut text = format!("sender {}\n", self.sender);
        for endings in &self.endings {
            text.extend(endings.iter().map(|b| char::from(*b)));
            text.push('\n');
        }
        text
    }

    /// Reads [`SenderLog::to_text`] back.
    pub(crate) fn from_text(text: &str) -> Result<Self, String> {
        let mut lines = text.lines();
        let first = lines.next().unwrap_or_default();
        let sender = first
            .strip_prefix("sender ")
            .and_then(|n| n.parse().ok())
            .ok_or_else(|| format!("a sender's log begins with {first:?}, not with its number"))?;
        let mut endings = Vec::new();
        for (actor, line) in lines.enumerate() {
            if let Some(bad) = line.bytes().find(|b| Ending::from_byte(*b).is_none()) {
                return Err(format!(
                    "the log of sender {sender} has the unknown ending {:?} for actor {actor}",
                    char::from(bad)
                ));
            }
            endings.push(line.as_bytes().to_vec());
        }
        Ok(Self { sender, endings })
    }
}

/// Numbers in the order in which they were handled, as runs of consecutive ones: first, length.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Runs(Vec<(u64, u64)>);

impl Runs {
    pub(crate) fn push(&mut self, number: u64) {
        match self.0.last_mut() {
            Some((first, length)) if first.wrapping_add(*length) == number => *length += 1,
            _ => self.0.push((number, 1)),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().flat_map(|(first, length)| (0..*length).map(|n| first.wrapping_add(n)))
    }

    fn len(&self) -> u64 {
        self.0.iter().map(|(_, length)| length).sum()
    }
}

/// What an Actor handled, per sender.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Handled(Vec<(u32, Runs)>);

impl Handled {
    pub(crate) fn push(&mut self, sender: u32, number: u64) {
        let at = self.0.iter().position(|(s, _)| *s == sender).unwrap_or_else(|| {
            self.0.push((sender, Runs::default()));
            self.0.len() - 1
        });
        self.0[at].1.push(number);
    }

    /// What came from one sender.
    pub(crate) fn of(&self, sender: u32) -> Option<&Runs> {
        self.0.iter().find(|(s, _)| *s == sender).map(|(_, runs)| runs)
    }
}

/// How many sentences about defects a verdict keeps.
const MAX_EXAMPLES: usize = 8;

/// The outcome of the comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    /// Actors that said what they handled.
    pub(crate) actors: u64,
    /// Actors that did not answer.
    pub(crate) silent: u64,
    /// Messages in the senders' logs.
    pub(crate) sent: u64,
    /// Messages in the Actors' records.
    pub(crate) handled: u64,
    /// Taken or answered, and not handled.
    pub(crate) lost: u64,
    /// Handled again.
    pub(crate) doubled: u64,
    /// Handled behind a later one of the same sender.
    pub(crate) swapped: u64,
    /// Handled, and never sent.
    pub(crate) invented: u64,
    /// Answered with another message's answer.
    pub(crate) misanswered: u64,
    /// Neither answered nor failed.
    pub(crate) unended: u64,
    /// Ended with an error and not handled.
    pub(crate) excused: u64,
    /// Ended with an error and handled all the same.
    pub(crate) failed_but_handled: u64,
    /// Operations that ended with an error, by kind.
    pub(crate) errors: BTreeMap<String, u64>,
    /// Messages handled, by the sender's node and the Actor's node.
    pub(crate) matrix: Vec<Vec<u64>>,
    /// Sentences about the first defects.
    pub(crate) examples: Vec<String>,
}

impl Verdict {
    /// Defects by name; all zero when the run was good.
    pub(crate) fn defects(&self) -> [(&'static str, u64); 7] {
        [
            ("lost", self.lost),
            ("doubled", self.doubled),
            ("swapped", self.swapped),
            ("invented", self.invented),
            ("misanswered", self.misanswered),
            ("unended", self.unended),
            ("silent actors", self.silent),
        ]
    }

    /// Why the run is not good; `None` when it is.
    pub(crate) fn reason(&self) -> Option<String> {
        let found: Vec<String> = self
            .defects()
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| format!("{count} {name}"))
            .collect();
        if !found.is_empty() {
            return Some(found.join(", "));
        }
        // Without this, a run in which everything failed would be excused as a whole.
        (self.handled == 0).then(|| "no message was handled, so nothing was shown".to_owned())
    }
}

/// Compares senders' logs with Actors' records, one Actor at a time.
pub(crate) struct Comparison {
    logs: Vec<SenderLog>,
    nodes: u32,
    senders_per_node: u32,
    verdict: Verdict,
}

impl Comparison {
    pub(crate) fn new(logs: Vec<SenderLog>, nodes: u32, senders_per_node: u32) -> Self {
        let matrix = vec![vec![0; nodes as usize]; nodes as usize];
        let verdict = Verdict { matrix, ..Verdict::default() };
        Self { logs, nodes, senders_per_node, verdict }
    }

    /// The Actor did not answer.
    pub(crate) fn silent(&mut self, actor: u32, why: &str) {
        self.verdict.silent += 1;
        self.example(format!("actor {actor} did not say what it handled: {why}"));
    }

    /// The Actor answered.
    pub(crate) fn actor(&mut self, actor: u32, handled: &Handled) {
        self.verdict.actors += 1;
        let known = |sender: u32| self.logs.iter().any(|log| log.sender == sender);
        let strangers: Vec<(u32, u64)> = handled
            .0
            .iter()
            .filter(|(sender, _)| !known(*sender))
            .map(|(sender, runs)| (*sender, runs.len()))
            .collect();
        for (sender, count) in strangers {
            self.verdict.invented += count;
            self.example(format!("actor {actor} handled {count} of the unknown sender {sender}"));
        }
        for at in 0..self.logs.len() {
            let sender = self.logs[at].sender;
            let endings = std::mem::take(&mut self.logs[at].endings[actor as usize]);
            let runs = handled.of(sender).cloned().unwrap_or_default();
            self.pair(sender, actor, &endings, &runs);
        }
    }

    fn pair(&mut self, sender: u32, actor: u32, endings: &[u8], runs: &Runs) {
        let who = format!("sender {sender} to actor {actor}");
        let mut seen = vec![false; endings.len()];
        let mut highest = 0;
        for number in runs.iter() {
            self.verdict.handled += 1;
            let Some(seen) = number
                .checked_sub(1)
                .and_then(|at| usize::try_from(at).ok())
                .and_then(|at| seen.get_mut(at))
            else {
                self.verdict.invented += 1;
                self.example(format!("{who}: number {number} was handled but never sent"));
                continue;
            };
            if std::mem::replace(seen, true) {
                self.verdict.doubled += 1;
                self.example(format!("{who}: number {number} was handled again"));
            } else if number < highest {
                self.verdict.swapped += 1;
                self.example(format!("{who}: number {number} was handled behind {highest}"));
            }
            highest = highest.max(number);
        }
        let from = (sender / self.senders_per_node) as usize;
        let to = (actor % self.nodes) as usize;
        if let Some(cell) = self.verdict.matrix.get_mut(from).and_then(|row| row.get_mut(to)) {
            *cell += runs.len();
        }
        for (at, (byte, seen)) in endings.iter().zip(seen).enumerate() {
            let ending = Ending::from_byte(*byte).unwrap_or(Ending::Pending);
            self.message(&who, at as u64 + 1, ending, seen);
        }
    }

    fn message(&mut self, who: &str, number: u64, ending: Ending, was_handled: bool) {
        let verdict = &mut self.verdict;
        verdict.sent += 1;
        match ending {
            Ending::Pending => verdict.unended += 1,
            Ending::Misanswered => verdict.misanswered += 1,
            Ending::Failed(kind) => {
                *verdict.errors.entry(kind.to_string()).or_default() += 1;
                verdict.excused += u64::from(!was_handled);
                verdict.failed_but_handled += u64::from(was_handled);
            }
            Ending::Admitted | Ending::Replied => {}
        }
        match ending {
            Ending::Pending | Ending::Misanswered => {
                self.example(format!("{who}: number {number} {}", ending.told()));
            }
            Ending::Admitted | Ending::Replied if !was_handled => {
                self.verdict.lost += 1;
                self.example(format!(
                    "{who}: number {number} {} and was never handled",
                    ending.told()
                ));
            }
            _ => {}
        }
    }

    fn example(&mut self, text: String) {
        if self.verdict.examples.len() < MAX_EXAMPLES {
            self.verdict.examples.push(text);
        }
    }

    pub(crate) fn verdict(self) -> Verdict {
        self.verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: [Ending; 4] =
        [Ending::Admitted, Ending::Replied, Ending::Admitted, Ending::Replied];
    const TIMED_OUT: Ending = Ending::Failed(ErrorKind::DeadlineExceeded);

    /// The verdict on one sender and one Actor.
    fn judge(endings: &[Ending], handled: &[u64]) -> Verdict {
        let mut log = SenderLog::new(0, 1);
        for ending in endings {
            let number = log.submit(0);
            log.end(0, number, *ending);
        }
        let mut record = Handled::default();
        for number in handled {
            record.push(0, *number);
        }
        let mut comparison = Comparison::new(vec![log], 1, 1);
        comparison.actor(0, &record);
        comparison.verdict()
    }

    /// Asserts that exactly these defects were found.
    #[track_caller]
    fn assert_defects(verdict: &Verdict, wanted: &[(&str, u64)]) {
        let found: Vec<_> = verdict.defects().into_iter().filter(|(_, n)| *n > 0).collect();
        assert_eq!(found, wanted, "{verdict:?}");
    }

    #[test]
    fn all_in_order_passes() {
        let verdict = judge(&GOOD, &[1, 2, 3, 4]);
        assert_eq!(verdict.reason(), None);
        assert_eq!((verdict.sent, verdict.handled, verdict.actors), (4, 4, 1));
        assert_eq!(verdict.matrix, vec![vec![4]]);
    }

    #[test]
    fn a_lost_message_is_found_wherever_it_stood() {
        for (handled, number) in [(&[2, 3, 4], 1), (&[1, 2, 4], 3), (&[1, 2, 3], 4)] {
            let verdict = judge(&GOOD, handled);
            assert_defects(&verdict, &[("lost", 1)]);
            let ended = if number == 4 { "was answered" } else { "was admitted" };
            assert_eq!(
                verdict.examples,
                [format!("sender 0 to actor 0: number {number} {ended} and was never handled")]
            );
        }
    }

    #[test]
    fn a_doubled_message_is_found_wherever_it_came_again() {
        assert_defects(&judge(&GOOD, &[1, 1, 2, 3, 4]), &[("doubled", 1)]);
        assert_defects(&judge(&GOOD, &[1, 2, 3, 4, 1, 2]), &[("doubled", 2)]);
        assert_defects(&judge(&GOOD, &[1, 2, 3, 4, 4, 4]), &[("doubled", 2)]);
    }

    #[test]
    fn swapped_messages_are_found() {
        assert_defects(&judge(&GOOD, &[2, 1, 3, 4]), &[("swapped", 1)]);
        assert_defects(&judge(&GOOD, &[4, 1, 2, 3]), &[("swapped", 3)]);
        assert_defects(&judge(&GOOD, &[2, 3, 4, 1]), &[("swapped", 1)]);
    }

    #[test]
    fn each_defect_is_counted_apart() {
        let verdict = judge(&GOOD, &[2, 1, 1, 9, 3]);
        assert_defects(&verdict, &[("lost", 1), ("doubled", 1), ("swapped", 1), ("invented", 1)]);
        assert_eq!(verdict.reason().unwrap(), "1 lost, 1 doubled, 1 swapped, 1 invented");
    }

    #[test]
    fn what_was_never_sent_is_invented() {
        for number in [0, 5, u64::MAX] {
            let mut handled = vec![1, 2, 3, 4];
            handled.push(number);
            assert_defects(&judge(&GOOD, &handled), &[("invented", 1)]);
        }
        let mut comparison = Comparison::new(vec![SenderLog::new(0, 1)], 1, 1);
        let mut record = Handled::default();
        record.push(7, 1);
        comparison.actor(0, &record);
        assert_defects(&comparison.verdict(), &[("invented", 1)]);
    }

    #[test]
    fn an_error_excuses_loss_alone() {
        let endings = [Ending::Admitted, TIMED_OUT, Ending::Replied];
        let lost = judge(&endings, &[1, 3]);
        assert_eq!((lost.reason(), lost.excused, lost.failed_but_handled), (None, 1, 0));
        let ran = judge(&endings, &[1, 2, 3]);
        assert_eq!((ran.reason(), ran.excused, ran.failed_but_handled), (None, 0, 1));
        assert_eq!(ran.errors, BTreeMap::from([("DeadlineExceeded".to_owned(), 1)]));
        assert_defects(&judge(&endings, &[1, 2, 2, 3]), &[("doubled", 1)]);
        assert_defects(&judge(&endings, &[1, 3, 2]), &[("swapped", 1)]);
        // Its neighbours are not excused by it.
        assert_defects(&judge(&endings, &[1]), &[("lost", 1)]);
    }

    #[test]
    fn what_never_ended_or_got_a_wrong_answer_is_a_defect() {
        let endings = [Ending::Pending, Ending::Misanswered];
        assert_defects(&judge(&endings, &[1, 2]), &[("misanswered", 1), ("unended", 1)]);
    }

    #[test]
    fn a_run_that_shows_nothing_does_not_pass() {
        let verdict = judge(&[TIMED_OUT, TIMED_OUT], &[]);
        assert!(verdict.reason().unwrap().contains("nothing was shown"));
        let mut comparison = Comparison::new(vec![SenderLog::new(0, 1)], 1, 1);
        comparison.silent(0, "Unavailable");
        assert_defects(&comparison.verdict(), &[("silent actors", 1)]);
    }

    #[test]
    fn senders_do_not_mix() {
        let mut logs = vec![SenderLog::new(0, 1), SenderLog::new(1, 1)];
        for log in &mut logs {
            let number = log.submit(0);
            log.end(0, number, Ending::Admitted);
        }
        let mut record = Handled::default();
        record.push(0, 1);
        record.push(0, 1);
        let mut comparison = Comparison::new(logs, 1, 2);
        comparison.actor(0, &record);
        assert_defects(&comparison.verdict(), &[("lost", 1), ("doubled", 1)]);
    }

    #[test]
    fn runs_keep_every_number_in_its_place() {
        let numbers = [1, 2, 3, 3, 5, 6, 4, 7];
        let mut runs = Runs::default();
        numbers.iter().for_each(|n| runs.push(*n));
        assert_eq!(runs.iter().collect::<Vec<_>>(), numbers);
        assert_eq!(runs.0, [(1, 3), (3, 1), (5, 2), (4, 1), (7, 1)]);
    }

    #[test]
    fn a_log_survives_as_text() {
        let mut log = SenderLog::new(3, 3);
        for ending in [Ending::Pending, Ending::Admitted, Ending::Replied, Ending::Misanswered] {
            let number = log.submit(1);
            log.end(1, number, ending);
        }
        for kind in ErrorKind::ALL {
            let number = log.submit(2);
            log.end(2, number, Ending::Failed(kind));
        }
        assert_eq!(log.to_text(), "sender 3\n\n?arw\nABCDEFGHIJKL\n");
        assert_eq!(SenderLog::from_text(&log.to_text()), Ok(log));
        assert!(SenderLog::from_text("sender 1\nax\n").unwrap_err().contains("'x'"));
        assert!(SenderLog::from_text("").is_err());
    }
}

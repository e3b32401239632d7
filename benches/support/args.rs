#![forbid(unsafe_code)]
//! The command line of a bench.

use super::node_work::Driver;

/// What a bench was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Args {
    /// A few operations of everything, to see that it works.
    pub(crate) tiny: bool,
    /// A-B-B-A rounds.
    pub(crate) rounds: usize,
    /// The driver of nodes on a network.
    pub(crate) driver: Driver,
    /// Only cases whose name contains one of these; all when empty.
    only: Vec<String>,
}

const USAGE: &str = "[--tiny] [--rounds N] [--driver KIND] [CASE...]\n\
  --tiny      a few operations of everything: shows that it works, measures nothing\n\
  --rounds N  A-B-B-A rounds, 1 to 99 (5)\n\
  --driver K  auto, uring or epoll, for benches with two nodes (auto)\n\
  CASE        only the cases whose name contains this";

impl Args {
    /// Reads the command line; ends the process when it is wrong.
    pub(crate) fn parse() -> Self {
        Self::parse_of("cargo bench --bench NAME --", "")
    }

    /// As [`Args::parse`], of a bench that is called in another way and says more about itself.
    pub(crate) fn parse_of(command: &str, more: &str) -> Self {
        match Self::read(std::env::args().skip(1)) {
            Ok(Some(args)) => args,
            Ok(None) => {
                println!("usage: {command} {USAGE}{more}");
                std::process::exit(0);
            }
            Err(text) => {
                eprintln!("{text}\nusage: {command} {USAGE}");
                std::process::exit(2);
            }
        }
    }

    fn read(mut words: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut args = Self { tiny: false, rounds: 0, driver: Driver::Auto, only: Vec::new() };
        while let Some(word) = words.next() {
            match word.as_str() {
                // Cargo gives it to every bench.
                "--bench" => {}
                "--tiny" => args.tiny = true,
                "--help" | "-h" => return Ok(None),
                "--rounds" => {
                    let value = words.next().unwrap_or_default();
                    args.rounds = value.parse().ok().filter(|n| (1..=99).contains(n)).ok_or(
                        format!("--rounds is {value:?}; it must be a whole number of 1 to 99"),
                    )?;
                }
                "--driver" => {
                    let value = words.next().unwrap_or_default();
                    args.driver = Driver::named(&value)
                        .ok_or(format!("--driver is {value:?}; it must be auto, uring or epoll"))?;
                }
                option if option.starts_with('-') => {
                    return Err(format!("no option {option:?}"));
                }
                name => args.only.push(name.to_owned()),
            }
        }
        if args.rounds == 0 {
            args.rounds = if args.tiny { 1 } else { 5 };
        }
        Ok(Some(args))
    }

    /// Whether the case is wanted.
    pub(crate) fn wants(&self, case: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| case.contains(part.as_str()))
    }

    /// Operations of a segment: few of them in the tiny form.
    pub(crate) fn operations(&self, full: u64) -> u64 {
        if self.tiny { full.min(256) } else { full }
    }
}

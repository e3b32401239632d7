#![forbid(unsafe_code)]
//! `homing wire`: what bytes of the wire mean, or which rule they break and where; and the bytes
//! that such JSON stands for.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use homing::limits::DEFAULT_MAX_FRAME_BYTES;
use homing::wire::{
    Control, DecodedRecord, Frame, MetadataPart, PartRule, PayloadPart, Record, Rule, WireError,
};

use crate::json::Json;
mod build;
mod encode;
mod fields;
mod show;

/// Exit code when some bytes break a rule.
const BROKEN: u8 = 1;
/// Exit code when there is nothing that could be decoded.
const UNUSABLE: u8 = 2;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Decode frames and records, given as hex, into one JSON object each
    ///
    /// What begins with 5a4d is a record, anything else a frame. The parts of one record are
    /// separated by commas: RECORD[,METADATA][,PAYLOAD]. Bytes that break a rule are reported on
    /// standard error as "RULE at offset N", and the exit code is 1.
    ///
    /// In the JSON, generations and counts are numbers; random ids, hashes and bytes are hex;
    /// a routing id is text when it is UTF-8, else 0x and hex. Nothing is lost: the bytes can be
    /// made from the JSON again.
    Decode(Decode),
    /// Encode the JSON that decode prints into hex again
    ///
    /// One JSON object in, one line of hex out: exactly the bytes it was decoded from. The parts
    /// of one record are separated by commas, as decode takes them. Fields that follow from
    /// others (name, flags, role_name, total_bytes and the like) and fields that are null may be
    /// left out; those that are there must agree. JSON that cannot be encoded is reported on
    /// standard error with the field, its value and the rule, and the exit code is 1.
    Encode(Encode),
    /// List the rules of the wire: name and sentence
    Rules,
}

/// Arguments of `homing wire decode`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Decode {
    /// Hex of a frame or of a record and its parts; spaces are ignored. None: one per line
    /// of standard input
    #[arg(value_name = "HEX")]
    inputs: Vec<String>,

    /// Read one input per line of a file (- is standard input); empty lines and lines that
    /// begin with # are skipped
    #[arg(long, value_name = "PATH", conflicts_with = "inputs")]
    file: Option<PathBuf>,

    /// What the bytes are
    #[arg(long = "as", value_enum, default_value_t = Kind::Auto)]
    kind: Kind,

    /// Accept a record without the metadata or payload part that it needs
    #[arg(long)]
    partial: bool,

    /// Largest frame that is accepted, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = DEFAULT_MAX_FRAME_BYTES)]
    max_frame: u32,

    /// Spread the JSON over lines
    #[arg(long)]
    pretty: bool,
}

/// Arguments of `homing wire encode`.
#[derive(Args)]
#[command(after_help = ENCODE_EXAMPLES)]
pub(crate) struct Encode {
    /// JSON of a frame, a record or a part. None: one object per line of standard input
    #[arg(value_name = "JSON")]
    inputs: Vec<String>,

    /// Read one object per line of a file (- is standard input); empty lines and lines that
    /// begin with # are skipped
    #[arg(long, value_name = "PATH", conflicts_with = "inputs")]
    file: Option<PathBuf>,

    /// Accept a record without the metadata or payload part that it needs
    #[arg(long)]
    partial: bool,

    /// Largest frame that is made, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = DEFAULT_MAX_FRAME_BYTES)]
    max_frame: u32,
}

const ENCODE_EXAMPLES: &str = "\
Examples:
  A liveness probe, as a record:
    homing wire encode '{\"kind\":\"record\",\"record\":{\"command\":5,\"probe_id\":7}}'

  The same bytes again:
    homing wire decode 5a4d0105000000000000000007 | homing wire encode

  Every frame of a capture, changed on the way:
    homing wire decode --file frames.hex | sed 's/\"lane\":0/\"lane\":1/' | \\
      homing wire encode";

// The backslashes inside are shown: the shell joins such lines.
const EXAMPLES: &str = "\
Examples:
  A liveness probe, as a record:
    homing wire decode 5a4d0105000000000000000007

  A message and its payload part:
    homing wire decode 5a4d0118000000000000000001000000000000000100000161\\
0000000000000001016e000000000000000100000000000000010000000000000001,\\
010000000b0361646401780000000107

  Every frame of a capture, one per line:
    homing wire decode --file frames.hex

  A single payload part:
    homing wire decode --as payload 010000000b0361646401780000000107";

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// A record if it begins with 5a4d, else a frame
    Auto,
    /// A link frame
    Frame,
    /// A record and its parts
    Record,
    /// A link control record
    Control,
    /// A metadata part
    Metadata,
    /// A payload part
    Payload,
}

/// Why an input has no JSON.
enum Failure {
    /// It breaks a rule, in the part that is named (the first needs no name).
    Broken(WireError, &'static str),
    /// It is a record without a part that it needs.
    Missing(WireError),
    /// It is not hex, or has too many parts.
    Unreadable(String),
}

impl Failure {
    const fn first(e: WireError) -> Self {
        Self::Broken(e, "")
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Broken(e, place) => {
                write!(f, "{} at offset {}{place}: {}", e.rule, e.offset, e.rule.text())
            }
            Self::Missing(e) => {
                write!(f, "{e} Add the part in hex after a comma, or pass --partial.")
            }
            Self::Unreadable(text) => f.write_str(text),
        }
    }
}

/// Runs the command.
pub(crate) fn run(command: &Command) -> ExitCode {
    let done = match command {
        Command::Decode(decode) => {
            let convert = |input: &str| decode.text(input).map_err(|e| e.to_string());
            Inputs {
                inputs: &decode.inputs,
                file: decode.file.as_deref(),
                name: "decode",
                of: "hex",
            }
            .run(&convert)
        }
        Command::Encode(encode) => {
            let convert = |input: &str| encode.text(input);
            Inputs {
                inputs: &encode.inputs,
                file: encode.file.as_deref(),
                name: "encode",
                of: "JSON",
            }
            .run(&convert)
        }
        Command::Rules => rules().map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|e| {
        if e.kind() == io::ErrorKind::BrokenPipe {
            return ExitCode::SUCCESS; // Whoever reads has seen enough.
        }
        eprintln!("homing wire: {e}");
        ExitCode::from(UNUSABLE)
    })
}

fn rules() -> io::Result<()> {
    let mut out = io::stdout().lock();
    Rule::ALL.iter().try_for_each(|rule| writeln!(out, "{:<24} {}", rule.name(), rule.text()))
}

impl Encode {
    /// The hex of one input.
    fn text(&self, input: &str) -> Result<String, String> {
        let json =
            serde_json::from_str(input).map_err(|e| format!("this is no JSON to encode: {e}"))?;
        encode::encode(&json, self.partial, self.max_frame).map_err(|e| e.to_string())
    }
}

impl Decode {
    /// The JSON of one input.
    fn text(&self, input: &str) -> Result<String, Failure> {
        let json = self.decode(input)?;
        let text = if self.pretty {
            serde_json::to_string_pretty(&json)
        } else {
            serde_json::to_string(&json)
        };
        text.map_err(|e| Failure::Unreadable(e.to_string()))
    }

    fn decode(&self, input: &str) -> Result<Json, Failure> {
        let parts: Vec<Vec<u8>> = input.split(',').map(unhex).collect::<Result<_, _>>()?;
        let (first, rest) = match parts.split_first() {
            Some((first, rest)) if !first.is_empty() => (first, rest),
            _ => return Err(Failure::Unreadable("the input is empty".into())),
        };
        let kind = match self.kind {
            Kind::Auto if first.starts_with(&[0x5A, 0x4D]) || !rest.is_empty() => Kind::Record,
            Kind::Auto => Kind::Frame,
            kind => kind,
        };
        if kind == Kind::Record {
            return self.record(first, rest);
        }
        if !rest.is_empty() {
            let text = "only a record has parts that are separated by commas".into();
            return Err(Failure::Unreadable(text));
        }
        let json = match kind {
            Kind::Control => Control::decode(first).map(|c| show::control(&c)),
            Kind::Metadata => MetadataPart::decode(first).map(|m| show::metadata(&m)),
            Kind::Payload => PayloadPart::decode(first).map(|p| show::payload(&p)),
            Kind::Frame | Kind::Auto | Kind::Record => {
                Frame::decode(first, self.max_frame).map(|f| show::frame(&f))
            }
        };
        json.map_err(Failure::first)
    }

    fn record(&self, bytes: &[u8], parts: &[Vec<u8>]) -> Result<Json, Failure> {
        let decoded = Record::decode(bytes).map_err(Failure::first)?;
        let (metadata_part, parts) = match parts.split_first() {
            Some((part, rest)) if decoded.has_metadata => (Some(part.as_slice()), rest),
            _ => (None, parts),
        };
        let payload_part = match parts {
            [] => None,
            [part] => Some(part.as_slice()),
            _ => return Err(Failure::Unreadable(TOO_MANY_PARTS.into())),
        };
        let metadata = self.metadata(&decoded, metadata_part)?;
        let payload = self.payload(&decoded, bytes.len(), payload_part)?;
        Ok(show::record(&decoded, metadata.as_ref(), payload.as_ref()))
    }

    fn metadata<'p>(
        &self,
        decoded: &DecodedRecord<'_>,
        part: Option<&'p [u8]>,
    ) -> Result<Option<MetadataPart<'p>>, Failure> {
        match part {
            None if decoded.has_metadata && !self.partial => {
                Err(Failure::Missing(WireError::new(Rule::MetadataMissing, RECORD_FLAGS_OFFSET)))
            }
            None => Ok(None),
            Some(part) => MetadataPart::decode(part)
                .map(Some)
                .map_err(|e| Failure::Broken(e, " of the metadata part")),
        }
    }

    fn payload<'p>(
        &self,
        decoded: &DecodedRecord<'_>,
        end: usize,
        part: Option<&'p [u8]>,
    ) -> Result<Option<PayloadPart<'p>>, Failure> {
        let at_end = |rule| WireError::new(rule, end);
        match (decoded.record.command().payload(), part) {
            (PartRule::Refused, Some(_)) => Err(Failure::first(at_end(Rule::PayloadNotAllowed))),
            (PartRule::Required, None) if !self.partial => {
                Err(Failure::Missing(at_end(Rule::PayloadMissing)))
            }
            (_, None) => Ok(None),
            (_, Some(part)) => PayloadPart::decode(part)
                .map(Some)
                .map_err(|e| Failure::Broken(e, " of the payload part")),
        }
    }
}

/// Where the flags stand in a record.
const RECORD_FLAGS_OFFSET: usize = 4;

const TOO_MANY_PARTS: &str = "there are more parts than the record can have: \
     RECORD[,METADATA][,PAYLOAD], with METADATA only if the record's flag 01 says so";

/// Where the inputs of a command come from.
struct Inputs<'a> {
    inputs: &'a [String],
    file: Option<&'a Path>,
    /// The command.
    name: &'static str,
    /// What an input is.
    of: &'static str,
}

impl Inputs<'_> {
    /// Prints what `convert` makes of every input, or what is wrong with it.
    fn run(&self, convert: &dyn Fn(&str) -> Result<String, String>) -> io::Result<ExitCode> {
        let mut session =
            Session { convert, alone: self.inputs.len() == 1, seen: 0, failed: false };
        if !self.inputs.is_empty() {
            for input in self.inputs {
                session.input(input)?;
            }
            return Ok(session.end());
        }
        match self.file {
            Some(path) if path.as_os_str() != "-" => {
                let named = |e: io::Error| {
                    io::Error::new(e.kind(), format!("cannot read {}: {e}", path.display()))
                };
                session.lines(BufReader::new(File::open(path).map_err(named)?))?;
            }
            None if io::stdin().is_terminal() => {
                return Err(io::Error::other(format!(
                    "nothing to {name}; give {of} as an argument, --file PATH, or lines on \
                     standard input (see homing wire {name} --help)",
                    name = self.name,
                    of = self.of,
                )));
            }
            _ => session.lines(io::stdin().lock())?,
        }
        if session.seen == 0 {
            let text = format!("there was no line with {} in the input", self.of);
            return Err(io::Error::other(text));
        }
        Ok(session.end())
    }
}

/// One run over many inputs.
struct Session<'a> {
    convert: &'a dyn Fn(&str) -> Result<String, String>,
    alone: bool,
    seen: usize,
    failed: bool,
}

impl Session<'_> {
    fn lines(&mut self, lines: impl BufRead) -> io::Result<()> {
        for line in lines.lines() {
            let line = line?;
            let line = line.trim();
            if !line.is_empty() && !line.starts_with('#') {
                self.input(line)?;
            }
        }
        Ok(())
    }

    fn input(&mut self, input: &str) -> io::Result<()> {
        self.seen += 1;
        match (self.convert)(input) {
            Ok(text) => writeln!(io::stdout().lock(), "{text}"),
            Err(failure) => {
                self.failed = true;
                let which = if self.alone {
                    Cow::from("")
                } else {
                    format!("input {}: ", self.seen).into()
                };
                writeln!(io::stderr().lock(), "{which}{failure}")
            }
        }
    }

    fn end(self) -> ExitCode {
        ExitCode::from(if self.failed { BROKEN } else { 0 })
    }
}

fn unhex(text: &str) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::with_capacity(text.len() / 2);
    let mut high = None;
    for (at, c) in text.char_indices().filter(|(_, c)| !c.is_ascii_whitespace()) {
        let digit = c.to_digit(16).ok_or_else(|| {
            Failure::Unreadable(format!("{c:?} at position {at} is not a hex digit"))
        })? as u8;
        high = match high {
            None => Some(digit << 4),
            Some(h) => {
                bytes.push(h | digit);
                None
            }
        };
    }
    if high.is_some() {
        let text = "there is an odd number of hex digits; a byte has two".into();
        return Err(Failure::Unreadable(text));
    }
    Ok(bytes)
}

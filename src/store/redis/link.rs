#![forbid(unsafe_code)]
//! Finding the master, keeping connections, and telling how a call ended.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::{
    Client, Cmd, Connection, ConnectionAddr, ConnectionInfo, ConnectionLike, RedisError, Script,
    Value,
};

use super::options::{Server, Target};
use super::value::Reply;
use crate::location::StoreError;
use crate::store::boottime;
use crate::time::Nanos;

/// A connection that was idle for this long is tried with a ping before it carries a commit, whose
/// loss would be an unknown outcome.
const TRUSTED_IDLE: Duration = Duration::from_secs(1);
/// Idle connections kept; a Store thread uses one at a time.
const MAX_IDLE: usize = 4;
/// A new connection takes no longer than this, however much time a call has.
const MAX_CONNECT: Duration = Duration::from_secs(5);

/// What the server says instead of running a script: nothing was read or written.
const REFUSALS: [&str; 12] = [
    "READONLY",
    "NOREPLICAS",
    "MASTERDOWN",
    "LOADING",
    "OOM",
    "MISCONF",
    "BUSY",
    "NOAUTH",
    "WRONGPASS",
    "NOSCRIPT",
    "TRYAGAIN",
    "HOMINGSPENT",
];
/// Those of them that another server, or the same one a moment later, may not give.
const ELSEWHERE: [&str; 5] = ["READONLY", "NOREPLICAS", "MASTERDOWN", "LOADING", "TRYAGAIN"];

/// A script with what it is given.
pub(super) struct Call<'s> {
    script: &'s Source,
    keys: Vec<Vec<u8>>,
    args: Vec<Vec<u8>>,
}

/// A script: its text, and the name the server knows it by.
struct Source {
    text: &'static str,
    writes: bool,
}

const COMMIT: Source = Source { text: include_str!("commit.lua"), writes: true };
const READ: Source = Source { text: include_str!("read.lua"), writes: false };
const SCAN: Source = Source { text: include_str!("scan.lua"), writes: false };

impl Call<'static> {
    pub(super) fn commit(keys: Vec<Vec<u8>>, args: Vec<Vec<u8>>) -> Self {
        Self { script: &COMMIT, keys, args }
    }

    pub(super) fn read(keys: Vec<Vec<u8>>, args: Vec<Vec<u8>>) -> Self {
        Self { script: &READ, keys, args }
    }

    pub(super) fn scan(keys: Vec<Vec<u8>>, args: Vec<Vec<u8>>) -> Self {
        Self { script: &SCAN, keys, args }
    }
}

impl Call<'_> {
    /// `EVALSHA name …`, or `EVAL text …`.
    fn command(&self, verb: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(verb);
        command.arg(script).arg(self.keys.len());
        for part in self.keys.iter().chain(&self.args) {
            command.arg(&part[..]);
        }
        command
    }
}

/// How an attempt ended without an answer.
enum Lost {
    /// For certain, nothing was done. With `true` another server may do it.
    Nothing(String, bool),
    /// The server may have done it.
    Perhaps(String),
}

/// The connections to one store.
pub(super) struct Link {
    target: Target,
    idle: Mutex<Vec<Idle>>,
    names: [(&'static str, String); 3],
}

struct Idle {
    connection: Connection,
    since: Nanos,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("target", &self.target).finish_non_exhaustive()
    }
}

impl Link {
    pub(super) fn new(target: Target) -> Arc<Self> {
        let name = |source: &Source| (source.text, Script::new(source.text).get_hash().to_owned());
        Arc::new(Self {
            target,
            idle: Mutex::default(),
            names: [name(&COMMIT), name(&READ), name(&SCAN)],
        })
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Idle>> {
        // A push or a pop is all that happens under the lock.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a call. What was refused is tried once more with the master of that moment, and so is
    /// a read whose connection was lost; a commit that may have arrived never is.
    pub(super) fn call(&self, call: &Call<'_>, until: Nanos) -> Result<Reply, StoreError> {
        let mut last = match self.attempt(call, until) {
            Ok(reply) => return Ok(reply),
            Err(lost) => lost,
        };
        let again = match &last {
            Lost::Nothing(_, elsewhere) => *elsewhere,
            Lost::Perhaps(_) => !call.script.writes,
        };
        if again && boottime() < until {
            // What is idle leads where the lost one led.
            self.idle().clear();
            last = match self.attempt(call, until) {
                Ok(reply) => return Ok(reply),
                Err(lost) => lost,
            };
        }
        Err(match last {
            Lost::Perhaps(text) if call.script.writes => StoreError::Unknown(text),
            Lost::Nothing(text, _) | Lost::Perhaps(text) => StoreError::Failed(text),
        })
    }

    fn attempt(&self, call: &Call<'_>, until: Nanos) -> Result<Reply, Lost> {
        let mut connection = self.connection(call.script.writes, until)?;
        let name = self.names.iter().find(|(text, _)| *text == call.script.text);
        let name = name.map_or("", |(_, name)| name);
        let mut answer = self.ask(&mut connection, &call.command("EVALSHA", name), until);
        if matches!(&answer, Err(e) if e.code() == Some("NOSCRIPT")) {
            answer = self.ask(&mut connection, &call.command("EVAL", call.script.text), until);
        }
        match answer {
            Ok(value) => {
                self.put_back(connection);
                Reply::new(value).map_err(|e| Lost::Perhaps(e.to_string()))
            }
            Err(e) => {
                let said = self.describe(&e, until);
                let code = e.code().unwrap_or_default();
                let elsewhere = ELSEWHERE.contains(&code);
                if e.code().is_some() && !elsewhere {
                    self.put_back(connection);
                }
                Err(if REFUSALS.contains(&code) {
                    Lost::Nothing(said, elsewhere)
                } else {
                    Lost::Perhaps(said)
                })
            }
        }
    }

    /// Sends a command and waits for its answer. After an error without a code the connection is
    /// of no further use: what it would answer next is this command's answer.
    fn ask(
        &self,
        connection: &mut Connection,
        command: &Cmd,
        until: Nanos,
    ) -> Result<Value, RedisError> {
        let left = until.since(boottime()).max(Duration::from_millis(1));
        connection.set_read_timeout(Some(left))?;
        connection.set_write_timeout(Some(left))?;
        command.query(connection)
    }

    fn put_back(&self, connection: Connection) {
        let mut idle = self.idle();
        if idle.len() < MAX_IDLE && connection.is_open() {
            idle.push(Idle { connection, since: boottime() });
        }
    }

    fn connection(&self, writes: bool, until: Nanos) -> Result<Connection, Lost> {
        loop {
            let Some(Idle { mut connection, since }) = self.idle().pop() else { break };
            let is_doubtful = writes && boottime().since(since) > TRUSTED_IDLE;
            if !is_doubtful || self.ask(&mut connection, &redis::cmd("PING"), until).is_ok() {
                return Ok(connection);
            }
        }
        self.connect(until).map_err(|text| Lost::Nothing(text, false))
    }

    /// A new connection to the server that is the master now, as far as anybody knows.
    pub(super) fn connect(&self, until: Nanos) -> Result<Connection, String> {
        match &self.target {
            Target::Server(server) => self.dial(server, &server.info, until),
            Target::Watched { sentinels, master, server } => {
                let mut failures = Vec::new();
                for sentinel in sentinels {
                    let found = self
                        .master_by(sentinel, master, until)
                        .and_then(|addr| self.dial(server, &server.at(addr), until));
                    match found {
                        Ok(connection) => return Ok(connection),
                        Err(text) => failures.push(text),
                    }
                }
                Err(format!("no sentinel leads to the master {master:?}: {}", failures.join("; ")))
            }
        }
    }

    fn dial(
        &self,
        server: &Server,
        info: &ConnectionInfo,
        until: Nanos,
    ) -> Result<Connection, String> {
        let left = until.since(boottime()).clamp(Duration::from_millis(1), MAX_CONNECT);
        let addr = info.addr();
        server
            .client(info.clone())
            .and_then(|client: Client| client.get_connection_with_timeout(left))
            .map_err(|e| format!("the Redis server {addr} cannot be reached: {}", said(&e)))
    }

    fn master_by(
        &self,
        sentinel: &Server,
        master: &str,
        until: Nanos,
    ) -> Result<(String, u16), String> {
        let mut connection = self.dial(sentinel, &sentinel.info, until)?;
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
        let addr = sentinel.info.addr();
        let answer = self
            .ask(&mut connection, &question, until)
            .map_err(|e| format!("the sentinel {addr} does not answer: {}", said(&e)))?;
        redis::from_redis_value::<Option<(String, u16)>>(answer)
            .map_err(|e| format!("the sentinel {addr} answered something else: {e}"))?
            .ok_or_else(|| format!("the sentinel {addr} does not know a master {master:?}"))
    }

    fn describe(&self, e: &RedisError, until: Nanos) -> String {
        let target = &self.target;
        if e.is_timeout() || (e.code().is_none() && boottime() >= until) {
            return format!("{target} did not answer in time");
        }
        format!("{target}: {}", said(e))
    }
}

/// An error of the client in words; it never contains a password.
pub(super) fn said(e: &RedisError) -> String {
    match (e.code(), e.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (Some(code), None) => code.to_owned(),
        (None, _) => e.to_string(),
    }
}

/// An address as a person writes it.
pub(super) fn shown(addr: &ConnectionAddr) -> String {
    addr.to_string()
}

#![forbid(unsafe_code)]
//! Private Redis servers, sentinels, and a door between a store and its server that can be shut.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use homing::store::redis::{RedisOptions, RedisStore};

use crate::eventually::eventually;

/// A server of its own directory and socket; killed when the test is over.
pub(crate) struct Server {
    child: Child,
    dir: tempfile::TempDir,
    /// Its TCP port; 0 when it has none.
    pub(crate) port: u16,
}

impl Server {
    /// A server on a Unix socket.
    pub(crate) fn start(options: &[&str]) -> Self {
        Self::spawn(0, options)
    }

    /// A server on a Unix socket and a port of the loopback interface.
    pub(crate) fn start_tcp(options: &[&str]) -> Self {
        Self::spawn(free_port(), options)
    }

    /// A sentinel that watches `master` under the name `main`.
    pub(crate) fn sentinel(master: &Self) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("sentinel.conf");
        // A sentinel writes into its configuration file.
        let text = format!(
            "sentinel monitor main 127.0.0.1 {} 1\nsentinel down-after-milliseconds main 1000\n",
            master.port
        );
        std::fs::write(&config, text).unwrap();
        let port = free_port();
        let child = spawn(
            Command::new(PROGRAM).arg(&config).args(["--sentinel", "--port"]).arg(port.to_string()),
        );
        Self { child, dir, port }
    }

    fn spawn(port: u16, options: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new(PROGRAM);
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        command.arg("--dir").arg(dir.path());
        command.arg("--unixsocket").arg(dir.path().join("socket")).args(options);
        let child = spawn(&mut command);
        let server = Self { child, dir, port };
        eventually("the server to listen", || UnixStream::connect(server.socket()).ok());
        server
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    pub(crate) fn url(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    pub(crate) fn tcp_url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn store(&self) -> RedisStore {
        self.options().open().unwrap()
    }

    pub(crate) fn options(&self) -> RedisOptions {
        RedisStore::options(self.url())
    }

    /// A command of the test's own; gives the answer as text.
    pub(crate) fn ask(&self, words: &[&str]) -> String {
        let mut connection = redis::Client::open(self.url()).unwrap().get_connection().unwrap();
        try_ask(&mut connection, words).unwrap()
    }

    /// As [`Server::ask`], over TCP, for sentinels; `None` when it is not there yet or refuses.
    pub(crate) fn ask_tcp(&self, words: &[&str]) -> Option<String> {
        let client = redis::Client::open(self.tcp_url()).unwrap();
        let mut connection = client.get_connection().ok()?;
        try_ask(&mut connection, words).ok()
    }

    /// How often scripts were asked for, by name or by text.
    pub(crate) fn scripts_called(&self) -> u64 {
        let stats = self.ask(&["INFO", "commandstats"]);
        let calls = |line: &str| {
            let rest = line.strip_prefix("cmdstat_eval")?;
            let rest = rest.strip_prefix("sha").unwrap_or(rest).strip_prefix(":calls=")?;
            rest.split(',').next()?.parse::<u64>().ok()
        };
        stats.lines().filter_map(calls).sum()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const PROGRAM: &str = "redis-server";

fn spawn(command: &mut Command) -> Child {
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap_or_else(|e| {
        panic!(
            "{PROGRAM} cannot be started ({e}): install Redis 7 or later, on Debian with \
             `apt-get install redis-server`, or run ./tools/test as root, which does it"
        )
    })
}

fn try_ask(connection: &mut redis::Connection, words: &[&str]) -> Result<String, String> {
    let mut command = redis::cmd(words[0]);
    words[1..].iter().for_each(|word| {
        command.arg(word);
    });
    match command.query::<redis::Value>(connection) {
        Ok(redis::Value::BulkString(bytes)) => Ok(String::from_utf8(bytes).unwrap()),
        Ok(redis::Value::VerbatimString { text, .. }) => Ok(text),
        Ok(other) => Ok(format!("{other:?}")),
        Err(e) => Err(format!("{words:?}: {e}")),
    }
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// What a door does with what comes from the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Everything passes, both ways.
    Open,
    /// The next words from the store pass, and instead of their answer the connection ends.
    SwallowAnswer,
    /// The next words from the store do not pass, and the connection ends.
    SwallowQuestion,
}

/// Stands between a store and a server.
pub(crate) struct Door {
    dir: tempfile::TempDir,
    way: Arc<Mutex<Way>>,
}

impl Door {
    pub(crate) fn to(server: &Server) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("door")).unwrap();
        let way = Arc::new(Mutex::new(Way::Open));
        let (to, shared) = (server.socket(), way.clone());
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, UnixStream::connect(&to)) else { return };
                let way = shared.clone();
                std::thread::spawn(move || pass(client, server, &way));
            }
        });
        Self { dir, way }
    }

    pub(crate) fn url(&self) -> String {
        format!("unix://{}", self.dir.path().join("door").display())
    }

    /// What happens to the next words of any connection.
    pub(crate) fn set(&self, way: Way) {
        *self.way.lock().unwrap() = way;
    }
}

fn pass(mut client: UnixStream, server: UnixStream, way: &Mutex<Way>) {
    let back_from = server.try_clone().unwrap();
    let back_to = Arc::new(Mutex::new(Some(client.try_clone().unwrap())));
    let slot = back_to.clone();
    std::thread::spawn(move || {
        let mut from = back_from;
        let mut bytes = [0; 1 << 16];
        while let Ok(len @ 1..) = from.read(&mut bytes) {
            let mut to = slot.lock().unwrap();
            let Some(client) = to.as_mut() else { return };
            if client.write_all(&bytes[..len]).is_err() {
                return;
            }
        }
    });
    let mut to = server;
    let mut bytes = [0; 1 << 16];
    while let Ok(len @ 1..) = client.read(&mut bytes) {
        let swallow = std::mem::replace(&mut *way.lock().unwrap(), Way::Open);
        if swallow == Way::SwallowAnswer {
            back_to.lock().unwrap().take();
        }
        if swallow != Way::SwallowQuestion && to.write_all(&bytes[..len]).is_err() {
            break;
        }
        if swallow != Way::Open {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
    // The server reads what has passed before it sees the end.
    let _ = to.shutdown(Shutdown::Write);
}

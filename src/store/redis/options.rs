#![forbid(unsafe_code)]
//! What can be chosen about a store in Redis, and what a server must be to serve.

use std::fmt;
use std::time::Duration;

use redis::{
    Client, Connection, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError,
    TlsCertificates, Value,
};

use super::link::{Link, said, shown};
use super::{Names, RedisStore};
use crate::error::Error;
use crate::store::boottime;

/// How long opening a store may take.
const OPEN_BUDGET: Duration = Duration::from_secs(5);
/// What every key of the store begins with unless another is chosen.
const DEFAULT_PREFIX: &str = "{homing}:";
const MAX_PREFIX_BYTES: usize = 64;
/// The value of the layout key.
const LAYOUT: &str = "homing 1";
const MIN_MAJOR: u64 = 7;

/// How to reach a store in Redis. See [`RedisStore::options`] and [`RedisStore::sentinels`].
///
/// ```no_run
/// use homing::store::redis::RedisStore;
/// let pem = std::fs::read("/etc/game/ca.pem")?;
/// let store = RedisStore::options("rediss://homing:secret@store.example:6380")
///     .tls_roots(pem)
///     .prefix("{game-eu}:")
///     .open()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct RedisOptions {
    server: String,
    watched: Option<(Vec<String>, String)>,
    prefix: String,
    tls_roots_pem: Option<Vec<u8>>,
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // URLs may contain passwords.
        f.debug_struct("RedisOptions").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl RedisOptions {
    pub(super) fn server_at(url: String) -> Self {
        Self { server: url, watched: None, prefix: DEFAULT_PREFIX.into(), tls_roots_pem: None }
    }

    pub(super) fn watched_by(sentinels: Vec<String>, master: String) -> Self {
        let watched = Some((sentinels, master));
        Self { watched, ..Self::server_at("redis://master".into()) }
    }

    /// For a store behind sentinels: user, password, database and TLS of the master, as a URL whose
    /// host and port are not used.
    #[must_use]
    pub fn server(mut self, url: impl Into<String>) -> Self {
        self.server = url.into();
        self
    }

    /// What every key of the store begins with: 1 to 64 bytes, `{homing}:` by default. Stores with
    /// different prefixes in one server know nothing of each other. Keep braces around a part of
    /// it: then all keys are in one slot.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Certificates (PEM) of the authorities that may have signed the server's; the system's own
    /// are used by default.
    #[must_use]
    pub fn tls_roots(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.tls_roots_pem = Some(pem.into());
        self
    }

    /// Opens the store: reaches the master once, and looks whether it can serve.
    ///
    /// # Errors
    /// `NotConfigured` for a URL or prefix that breaks a rule, a server that is older than
    /// version 7, is a replica, evicts records, refuses the credentials, or holds another layout
    /// under the prefix; `Unavailable` when no server can be reached.
    pub fn open(self) -> Result<RedisStore, Error> {
        if self.prefix.is_empty()
            || self.prefix.len() > MAX_PREFIX_BYTES
            || self.prefix.contains(char::is_control)
        {
            return Err(Error::not_configured(format!(
                "the prefix {:?} of a store in Redis has {} bytes; it must have 1 to \
                 {MAX_PREFIX_BYTES}, and no control characters",
                self.prefix,
                self.prefix.len()
            )));
        }
        let server = self.parse(&self.server)?;
        let target = match &self.watched {
            None => Target::Server(server),
            Some((sentinels, _)) if sentinels.is_empty() => {
                return Err(Error::not_configured("a store behind sentinels names none of them"));
            }
            Some((sentinels, master)) => Target::Watched {
                sentinels: sentinels.iter().map(|url| self.parse(url)).collect::<Result<_, _>>()?,
                master: master.clone(),
                server,
            },
        };
        let shown = target.to_string();
        let link = Link::new(target);
        let keys = Names::new(&self.prefix);
        let mut connection =
            link.connect(boottime() + OPEN_BUDGET).map_err(|text| unreachable(&text))?;
        let timeouts = connection
            .set_read_timeout(Some(OPEN_BUDGET))
            .and_then(|()| connection.set_write_timeout(Some(OPEN_BUDGET)));
        timeouts
            .map_err(|e| said(&e))
            .and_then(|()| examine(&mut connection))
            .and_then(|()| claim(&mut connection, &keys))
            .map_err(|why| Error::not_configured(format!("{shown} cannot be the store: {why}")))?;
        Ok(RedisStore { link, keys })
    }

    fn parse(&self, url: &str) -> Result<Server, Error> {
        let info = url.into_connection_info().map_err(|e| {
            // The URL itself may contain a password and is not shown.
            Error::not_configured(format!(
                "a Redis URL cannot be used ({e}); write redis://[user[:password]@]host[:port][/db], \
                 rediss://… with TLS, or unix:///path?db=0"
            ))
        })?;
        let uses_tls = matches!(info.addr(), ConnectionAddr::TcpTls { .. });
        if uses_tls {
            // Somebody else's choice stands when there is one.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        Ok(Server { info, tls_roots_pem: self.tls_roots_pem.clone() })
    }
}

fn unreachable(text: &str) -> Error {
    if ["WRONGPASS", "NOAUTH", "NOPERM", "AuthenticationFailed"].iter().any(|w| text.contains(w)) {
        return Error::not_configured(text.to_owned());
    }
    Error::unavailable(text.to_owned())
}

/// A server and how it is reached.
#[derive(Clone)]
pub(super) struct Server {
    pub(super) info: ConnectionInfo,
    tls_roots_pem: Option<Vec<u8>>,
}

impl Server {
    /// The same user, database and kind of connection at another address.
    pub(super) fn at(&self, (host, port): (String, u16)) -> ConnectionInfo {
        let addr = match self.info.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        self.info.clone().set_addr(addr)
    }

    pub(super) fn client(&self, info: ConnectionInfo) -> Result<Client, RedisError> {
        match &self.tls_roots_pem {
            Some(pem) if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) => {
                let root_cert = Some(pem.clone());
                Client::build_with_tls(info, TlsCertificates { client_tls: None, root_cert })
            }
            _ => Client::open(info),
        }
    }
}

/// Where the store is.
#[derive(Clone)]
pub(super) enum Target {
    /// In this server.
    Server(Server),
    /// In the server these sentinels name.
    Watched {
        /// Asked in order.
        sentinels: Vec<Server>,
        /// The name they know the master by.
        master: String,
        /// How the master is reached; its address is theirs to say.
        server: Server,
    },
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(server) => write!(f, "the Redis server {}", shown(server.info.addr())),
            Self::Watched { master, .. } => write!(f, "the Redis master {master:?}"),
        }
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Whether a server can serve.
fn examine(connection: &mut Connection) -> Result<(), String> {
    let info: String =
        redis::cmd("INFO").query(connection).map_err(|e| format!("INFO fails: {}", said(&e)))?;
    let field = |name: &str| {
        info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    let version = field("valkey_version").or(field("redis_version")).unwrap_or("unknown");
    let major = version.split('.').next().and_then(|major| major.parse::<u64>().ok());
    if major.is_none_or(|major| major < MIN_MAJOR) {
        return Err(format!("it has version {version}; it must be {MIN_MAJOR} or later"));
    }
    match field("role") {
        Some("master") => {}
        role => {
            return Err(format!(
                "its role is {}; name the master, or its sentinels",
                role.unwrap_or("unknown")
            ));
        }
    }
    match field("maxmemory_policy") {
        None | Some("noeviction") => Ok(()),
        Some(policy) => Err(format!(
            "its maxmemory-policy is {policy}, which forgets records when memory is short; set it \
             to noeviction"
        )),
    }
}

/// Writes the layout's version, or compares it.
fn claim(connection: &mut Connection, keys: &Names) -> Result<(), String> {
    let key = &keys.layout[..];
    let set: Result<Value, RedisError> =
        redis::cmd("SET").arg(key).arg(LAYOUT).arg("NX").query(connection);
    set.map_err(|e| format!("its layout key cannot be written: {}", said(&e)))?;
    let found: Result<Option<Vec<u8>>, RedisError> = redis::cmd("GET").arg(key).query(connection);
    let found = found.map_err(|e| format!("its layout key cannot be read: {}", said(&e)))?;
    if found.as_deref() != Some(LAYOUT.as_bytes()) {
        return Err(format!(
            "the key \"{}\" holds \"{}\" where this version of Homing has \"{LAYOUT}\"; choose \
             another prefix",
            key.escape_ascii(),
            found.unwrap_or_default().escape_ascii()
        ));
    }
    Ok(())
}

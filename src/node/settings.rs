#![forbid(unsafe_code)]
//! Every setting of a node with its default (R0-6), and the rules between them.

use std::time::Duration;

use crate::env::Endpoint;
use crate::error::{Error, Result};
use crate::exec::idle::Idle;
use crate::ids::{MeshName, NodeRid};
use crate::limits;
use crate::protocol::peer::{MeshSecret, check_endpoint_secrecy};
use crate::route::RouteLifetimes;
use crate::transport::kind::DriverKind;

/// The settings in force.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) mesh: MeshName,
    pub(crate) rid: NodeRid,
    pub(crate) cores: u16,
    pub(crate) pin: bool,
    pub(crate) idle: Idle,
    /// As asked for; from the start on, the one in use.
    pub(crate) driver: DriverKind,
    pub(crate) listen: Endpoint,
    pub(crate) advertise: Option<Endpoint>,
    pub(crate) peers: Vec<Endpoint>,
    pub(crate) secret: Option<MeshSecret>,
    /// `route_cache_max_age` and `message_follow_duration`.
    pub(crate) lifetimes: RouteLifetimes,
    pub(crate) route_cache_capacity: usize,
    pub(crate) lease_duration: Duration,
    pub(crate) lease_renew_interval: Duration,
    pub(crate) request_timeout: Duration,
    pub(crate) send_timeout: Duration,
    pub(crate) create_timeout: Duration,
    pub(crate) store_timeout: Duration,
    pub(crate) liveness_interval: Duration,
    pub(crate) liveness_timeout: Duration,
    pub(crate) max_frame_bytes: u32,
    pub(crate) lane_window_bytes: u32,
    pub(crate) messages_through_bytes: bool,
    /// `None`: as much as the largest frame asks for.
    pub(crate) lane_unsent_bytes: Option<u64>,
    pub(crate) handshake_timeout: Duration,
    pub(crate) half_open_limit: usize,
}

impl Settings {
    /// The defaults for a mesh. The rid is generated when the builder names none.
    pub(crate) fn new(mesh: MeshName, rid: NodeRid, listen: Endpoint) -> Self {
        Self {
            mesh,
            rid,
            cores: 1,
            pin: false,
            idle: Idle::Adaptive,
            driver: DriverKind::Auto,
            listen,
            advertise: None,
            peers: Vec::new(),
            secret: None,
            lifetimes: RouteLifetimes::default(),
            route_cache_capacity: limits::ROUTE_CACHE_ROUTES,
            lease_duration: limits::DEFAULT_LEASE_DURATION,
            lease_renew_interval: limits::DEFAULT_LEASE_RENEW_INTERVAL,
            request_timeout: limits::DEFAULT_REQUEST_TIMEOUT,
            send_timeout: limits::DEFAULT_SEND_TIMEOUT,
            create_timeout: limits::DEFAULT_CREATE_TIMEOUT,
            store_timeout: limits::DEFAULT_STORE_TIMEOUT,
            liveness_interval: limits::DEFAULT_LIVENESS_INTERVAL,
            liveness_timeout: limits::DEFAULT_LIVENESS_TIMEOUT,
            max_frame_bytes: limits::DEFAULT_MAX_FRAME_BYTES,
            lane_window_bytes: limits::LANE_WINDOW_BYTES,
            messages_through_bytes: false,
            lane_unsent_bytes: None,
            handshake_timeout: limits::HANDSHAKE_TIMEOUT,
            half_open_limit: limits::MAX_HALF_OPEN_HANDSHAKES,
        }
    }

    /// Bytes a lane may have unsent.
    pub(crate) fn unsent_limit(&self) -> u64 {
        let unless_set = limits::LANE_UNSENT_BYTES.max(self.least_unsent());
        self.lane_unsent_bytes.unwrap_or(unless_set)
    }

    fn least_unsent(&self) -> u64 {
        u64::from(self.max_frame_bytes) * limits::LANE_UNSENT_FRAMES
    }

    /// Checks every rule between settings. Nothing has been opened yet.
    pub(crate) fn check(&self) -> Result<()> {
        self.lifetimes.check()?;
        let range = |name: &str, value: u64, min: u64, max: u64, unit: &str| {
            if (min..=max).contains(&value) {
                return Ok(());
            }
            Err(Error::not_configured(format!(
                "{name} is {value}{unit}; it must be {min} to {max}{unit}"
            )))
        };
        range("cores", self.cores.into(), 1, limits::MAX_CORES.into(), "")?;
        range(
            "max_frame_bytes",
            self.max_frame_bytes.into(),
            limits::MIN_MAX_FRAME_BYTES.into(),
            limits::MAX_MAX_FRAME_BYTES.into(),
            "",
        )?;
        for (name, value) in [
            ("lease_duration", self.lease_duration),
            ("lease_renew_interval", self.lease_renew_interval),
            ("request_timeout", self.request_timeout),
            ("send_timeout", self.send_timeout),
            ("create_timeout", self.create_timeout),
            ("store_timeout", self.store_timeout),
            ("liveness_interval", self.liveness_interval),
            ("liveness_timeout", self.liveness_timeout),
            ("handshake_timeout", self.handshake_timeout),
        ] {
            let ms = u64::try_from(value.as_millis()).unwrap_or(u64::MAX);
            range(name, ms, 1, 86_400_000, " ms")?;
        }
        for (name, value) in [
            ("route_cache_max_age", self.lifetimes.max_age),
            ("message_follow_duration", self.lifetimes.follow_duration),
        ] {
            let ms = u64::try_from(value.as_millis()).unwrap_or(u64::MAX);
            range(name, ms, 0, 86_400_000, " ms")?;
        }
        let twice = self.lease_renew_interval * 2 + limits::LEASE_ADMISSION_MARGIN;
        if twice >= self.lease_duration {
            return Err(Error::not_configured(format!(
                "lease_renew_interval {:?} is too long for lease_duration {:?}: two renewals and the \
                 margin of {:?} must fit into a lease",
                self.lease_renew_interval,
                self.lease_duration,
                limits::LEASE_ADMISSION_MARGIN
            )));
        }
        if self.liveness_interval * 2 >= self.liveness_timeout {
            return Err(Error::not_configured(format!(
                "liveness_interval {:?} is too long for liveness_timeout {:?}: two probes must fit",
                self.liveness_interval, self.liveness_timeout
            )));
        }
        range("lane_window_bytes", self.lane_window_bytes.into(), 65_536, 1 << 30, "")?;
        range("max_half_open_handshakes", self.half_open_limit as u64, 1, 1 << 20, "")?;
        let (unsent, least) = (self.unsent_limit(), self.least_unsent());
        if unsent < least {
            return Err(Error::not_configured(format!(
                "lane_unsent_bytes is {unsent}; with max_frame_bytes {} it must be {least} or more, \
                 so that a peer that reads a large frame slowly is not taken for one that reads none",
                self.max_frame_bytes
            )));
        }
        if let (Endpoint::Tcp(addr), None) = (&self.listen, &self.advertise)
            && addr.ip().is_unspecified()
            && self.secret.is_some()
        {
            return Err(Error::not_configured(format!(
                "listen {} takes connections on every address, which tells nobody where to dial; \
                 set advertise to the address others shall use",
                self.listen
            )));
        }
        let secret = self.secret.as_ref();
        check_endpoint_secrecy("listen", &self.listen, secret)?;
        self.advertise.iter().try_for_each(|e| check_endpoint_secrecy("advertise", e, secret))?;
        self.peers.iter().try_for_each(|e| check_peer_endpoint(e, secret))?;
        Ok(())
    }
}

/// The rules for an endpoint that is to be dialled, at the start and at run time.
pub(crate) fn check_peer_endpoint(endpoint: &Endpoint, secret: Option<&MeshSecret>) -> Result<()> {
    if let Endpoint::Tcp(addr) = endpoint
        && (addr.port() == 0 || addr.ip().is_unspecified())
    {
        return Err(Error::not_configured(format!(
            "peer {endpoint} cannot be dialled: it needs the address and the port another node \
             listens on"
        )));
    }
    check_endpoint_secrecy("peer", endpoint, secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings::new(
            MeshName::new("m").unwrap(),
            NodeRid::new("n").unwrap(),
            "tcp://127.0.0.1:0".parse().unwrap(),
        )
    }

    /// Proves R0-6, R0-7.
    #[test]
    fn defaults_pass_and_each_rule_refuses() {
        settings().check().unwrap();
        type Break = fn(&mut Settings);
        let cases: [(Break, &str); 12] = [
            (|s| s.lifetimes.max_age = Duration::from_millis(25_001), "route_cache_max_age"),
            (|s| s.cores = 0, "cores is 0"),
            (|s| s.max_frame_bytes = 1, "max_frame_bytes is 1"),
            (|s| s.request_timeout = Duration::ZERO, "request_timeout"),
            (|s| s.lease_renew_interval = Duration::from_secs(5), "lease_renew_interval"),
            (|s| s.liveness_interval = Duration::from_secs(9), "liveness_interval"),
            (|s| s.listen = "tcp://0.0.0.0:0".parse().unwrap(), "mesh secret"),
            (|s| s.peers = vec!["tcp://10.0.0.1:1".parse().unwrap()], "peer tcp://10.0.0.1:1"),
            (|s| s.peers = vec!["tcp://127.0.0.1:0".parse().unwrap()], "cannot be dialled"),
            (|s| s.handshake_timeout = Duration::ZERO, "handshake_timeout is 0 ms"),
            (|s| s.half_open_limit = 0, "max_half_open_handshakes is 0"),
            (|s| s.lane_unsent_bytes = Some(1 << 20), "lane_unsent_bytes is 1048576"),
        ];
        for (spoil, word) in cases {
            let mut s = settings();
            spoil(&mut s);
            let e = s.check().unwrap_err();
            assert!(e.text().contains(word), "{e} does not say {word}");
        }
    }
}

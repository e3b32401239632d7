#![forbid(unsafe_code)]
//! Taking the lease: read what stands, wait for a lease of another lifecycle, acquire.

use crate::env::{StoreAnswer, StoreOp};
use crate::error::{Error, ErrorKind};
use crate::ids::{NodeGeneration, OwnerLeaseGeneration, StoreVersion};
use crate::limits::GENERATION_BLOCK;
use crate::location::{Batch, BatchOutcome, Condition, Record, StoreError, Write};
use crate::store::records::{
    Block, HashSeed, LeaseRecord, OwnerGuard, OwnerRecord, OwnerState, generation_key,
    hash_seed_key, lease_key, owner_key, take_block,
};
use crate::time::Nanos;

use super::{Held, Keeper, KeeperEffect, Started, State};

/// What is known of a lease of another lifecycle under this rid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum SeenLease {
    /// Nothing was read yet.
    Unknown,
    /// There was none.
    Absent,
    /// There was one of this version.
    Version(StoreVersion),
}

/// What an acquiring commit takes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Claim {
    lease: LeaseRecord,
    generations: Block,
    hash_seed: u64,
    sent_at: Nanos,
}

/// Index of the owner record among the writes of an acquiring commit.
const OWNER_WRITE: usize = 0;

/// The four records a start reads.
struct Found {
    lease: Option<Record>,
    owner: Option<(OwnerRecord, StoreVersion)>,
    counter: Option<Record>,
    hash_seed: Option<u64>,
}

impl Keeper {
    pub(super) fn send_start_read(&mut self, now: Nanos, out: &mut Vec<KeeperEffect>) {
        let rid = &self.config.rid;
        let keys = vec![lease_key(rid), owner_key(rid), generation_key(), hash_seed_key()];
        self.state = State::Reading;
        self.send(StoreOp::Read(keys), now, out);
    }

    pub(super) fn on_start_read(
        &mut self,
        answer: StoreAnswer,
        now: Nanos,
        out: &mut Vec<KeeperEffect>,
    ) {
        match self.found(answer) {
            Ok(Some(found)) => self.decide(found, now, out),
            Ok(None) => self.look_again(now, out),
            Err(e) => self.fail_start(e, out),
        }
    }

    /// Reads the answer. `None`: the Store did not answer, but there is time to try again.
    fn found(&self, answer: StoreAnswer) -> Result<Option<Found>, Error> {
        let StoreAnswer::Read(read) = answer else { return Ok(None) };
        let Ok([lease, owner, counter, seed]) = <[_; 4]>::try_from(read.records) else {
            return Err(Error::internal("the Location Store answered another number of records"));
        };
        let owner = match owner {
            None => None,
            Some(Record { value, version, .. }) => {
                Some((OwnerRecord::decode(&owner_key(&self.config.rid), &value)?, version))
            }
        };
        let hash_seed = match seed {
            None => None,
            Some(record) => Some(HashSeed::decode(&hash_seed_key(), &record.value)?.0),
        };
        Ok(Some(Found { lease, owner, counter, hash_seed }))
    }

    fn decide(&mut self, found: Found, now: Nanos, out: &mut Vec<KeeperEffect>) {
        if let Some((owner, version)) = &found.owner
            && owner.lifecycle == self.config.lifecycle
        {
            self.adopt_own(owner.clone(), *version, found.hash_seed, now, out);
            return;
        }
        if self.release.is_some() {
            self.end_release(true, out);
            return;
        }
        let Some(lease) = &found.lease else {
            self.seen = SeenLease::Absent;
            self.acquire(&found, now, out);
            return;
        };
        match self.seen {
            SeenLease::Version(version) if version == lease.version => {}
            SeenLease::Unknown => self.seen = SeenLease::Version(lease.version),
            _ => {
                self.fail_start(self.rid_in_use(), out);
                return;
            }
        }
        // Looks often enough to see a renewal soon, and not before the lease can have run out.
        let pause = lease.expires_in.unwrap_or(self.config.lease_duration);
        let pause = pause.min(self.retry_pause()).max(std::time::Duration::from_millis(1));
        self.state = State::Watching;
        self.wait_until = now + pause;
    }

    fn rid_in_use(&self) -> Error {
        Error::not_configured(format!(
            "rid {:?} is used by a live node: its lease was written while this node started; every node of one Location Store needs a rid of its own",
            self.config.rid
        ))
    }

    fn acquire(&mut self, found: &Found, now: Nanos, out: &mut Vec<KeeperEffect>) {
        match self.acquiring_batch(found, now) {
            Ok((batch, claim)) => {
                self.state = State::Acquiring(claim);
                self.send(StoreOp::Commit(batch), now, out);
            }
            Err(e) => self.fail_start(e, out),
        }
    }

    /// One commit: numbers from the counter, the owner record, the lease, and the hash seed if
    /// this is the first node of all.
    fn acquiring_batch(&self, found: &Found, now: Nanos) -> Result<(Batch, Claim), Error> {
        let rid = &self.config.rid;
        let (taking, mut generations) = take_block(found.counter.as_ref())?;
        let lease = first_two(&mut generations)?;
        let owner = OwnerRecord {
            node_generation: lease.node_generation,
            owner_lease_generation: lease.owner_lease_generation,
            lifecycle: self.config.lifecycle,
            state: OwnerState::Active,
        };
        let mut conditions = vec![
            match &found.owner {
                None => Condition::Absent(owner_key(rid)),
                Some((_, version)) => Condition::VersionIs(owner_key(rid), *version),
            },
            Condition::Absent(lease_key(rid)),
        ];
        conditions.extend(taking.conditions);
        const { assert!(OWNER_WRITE == 0) };
        let ttl = Some(self.config.lease_duration);
        let mut writes = vec![
            Write::Put { key: owner_key(rid), value: owner.encode(), ttl: None },
            Write::Put { key: lease_key(rid), value: lease.encode(), ttl },
        ];
        writes.extend(taking.writes);
        if found.hash_seed.is_none() {
            let (condition, write) = HashSeed(self.config.hash_seed).write_once();
            conditions.push(condition);
            writes.push(write);
        }
        let hash_seed = found.hash_seed.unwrap_or(self.config.hash_seed);
        let claim = Claim { lease, generations, hash_seed, sent_at: now };
        Ok((Batch { conditions, writes }, claim))
    }

    pub(super) fn on_acquired(
        &mut self,
        claim: Claim,
        answer: StoreAnswer,
        now: Nanos,
        out: &mut Vec<KeeperEffect>,
    ) {
        match answer {
            StoreAnswer::Commit(BatchOutcome::Committed(versions)) => {
                let Some(version) = versions.get(OWNER_WRITE).copied() else {
                    self.fail_start(Error::internal("the Location Store gave no versions"), out);
                    return;
                };
                self.started(claim, version, now, out);
            }
            StoreAnswer::Commit(BatchOutcome::Conflict { .. }) => self.send_start_read(now, out),
            other => {
                if !matches!(other, StoreAnswer::Failed(StoreError::Failed(_))) {
                    self.doubt.get_or_insert(claim.sent_at);
                }
                self.look_again(now, out);
            }
        }
    }

    /// The owner record is ours: an acquisition whose answer was lost was applied after all.
    fn adopt_own(
        &mut self,
        owner: OwnerRecord,
        version: StoreVersion,
        hash_seed: Option<u64>,
        now: Nanos,
        out: &mut Vec<KeeperEffect>,
    ) {
        let lease = LeaseRecord {
            node_generation: owner.node_generation,
            owner_lease_generation: owner.owner_lease_generation,
        };
        // An acquisition takes a whole block: these two numbers, then the object generations.
        let first = owner.node_generation.get();
        let generations = Block::new(first + 2, first + GENERATION_BLOCK);
        match (owner.state, hash_seed, generations) {
            (OwnerState::Active, Some(hash_seed), Some(generations)) => {
                let sent_at = self.doubt.unwrap_or(now.minus(self.config.lease_duration));
                self.started(Claim { lease, generations, hash_seed, sent_at }, version, now, out);
            }
            _ => self.fail_start(
                Error::unavailable(format!(
                    "the owner record of rid {:?} was released while the node started; start it \
                     again",
                    self.config.rid
                )),
                out,
            ),
        }
    }

    fn started(
        &mut self,
        claim: Claim,
        owner_version: StoreVersion,
        now: Nanos,
        out: &mut Vec<KeeperEffect>,
    ) {
        let owner = OwnerGuard { rid: self.config.rid.clone(), version: owner_version };
        self.doubt = None;
        if self.release.is_none() {
            self.publish_lease(claim.sent_at, out);
            out.push(KeeperEffect::Started(Box::new(Started {
                node_generation: claim.lease.node_generation,
                owner_lease_generation: claim.lease.owner_lease_generation,
                owner: owner.clone(),
                hash_seed: claim.hash_seed,
                generations: claim.generations,
            })));
        }
        let held = Held {
            owner,
            lease: claim.lease,
            descriptor: None,
            descriptor_unsent: false,
            descriptor_unconfirmed: false,
            renew_at: claim.sent_at + self.config.renew_interval,
        };
        self.hold(held, now, out);
    }

    /// Reads again after a pause, unless the Store has failed for too long.
    fn look_again(&mut self, now: Nanos, out: &mut Vec<KeeperEffect>) {
        if let Some(deadline) = self.release
            && (self.doubt.is_none() || now >= deadline)
        {
            self.end_release(self.doubt.is_none(), out);
            return;
        }
        let failing = self.failing_since.map(|since| now.since(since)).unwrap_or_default();
        if failing >= self.config.start_timeout {
            let e = Error::new(
                ErrorKind::Unavailable,
                format!(
                    "the Location Store did not answer for {failing:?} while the node took the \
                     lease of rid {:?}; check the store setting and the server behind it",
                    self.config.rid
                ),
            );
            self.fail_start(e, out);
            return;
        }
        self.state = State::Watching;
        self.wait_until = now + self.retry_pause();
    }

    fn fail_start(&mut self, e: Error, out: &mut Vec<KeeperEffect>) {
        self.state = State::Ended;
        match self.release {
            Some(_) => self.end_release(false, out),
            None => out.push(KeeperEffect::StartFailed(e)),
        }
    }
}

/// Node and lease generation: the first two numbers of a block.
fn first_two(block: &mut Block) -> Result<LeaseRecord, Error> {
    let node = block.take().and_then(NodeGeneration::new);
    let lease = block.take().and_then(OwnerLeaseGeneration::new);
    match (node, lease) {
        (Some(node_generation), Some(owner_lease_generation)) => {
            Ok(LeaseRecord { node_generation, owner_lease_generation })
        }
        _ => Err(Error::internal("a generation block has fewer than two numbers")),
    }
}

const _: () = assert!(GENERATION_BLOCK > 2);

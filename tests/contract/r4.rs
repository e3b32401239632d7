#![forbid(unsafe_code)]
//! R4: requests and replies.

use std::time::Duration;

use homing::{Counter, ErrorKind, Metadata, block_on};

use super::command::Command;
use super::eventually::eventually;
use super::probe::{Ask, Explode, Fail, Hold, Note, Show, garbage, open_gate, raw};
use super::proxy::Proxy;
use super::world::{Asks, World, refused};

/// A turn that asks `target` to hold at `gate`.
pub(crate) fn ask(number: u64, target: &str, gate: &str) -> Ask {
    Ask { number, target: target.into(), gate: gate.into(), timeout_ms: 20_000 }
}

/// Replies that come in the opposite order reach the requests they belong to.
///
/// Proves R4-1, R1-3.
#[test]
fn each_reply_reaches_its_own_request() {
    let world = World::new();
    let owner = world.child(&world.setup("owner"));
    let (node, _) = world.node(&world.setup("caller"));
    let ids: Vec<String> = (0..20).map(|n| format!("a{n}")).collect();
    let gates: Vec<String> = ids.iter().map(|id| world.gate(id)).collect();
    ids.iter().for_each(|id| drop(owner.create(id)));
    std::thread::scope(|s| {
        let asking: Vec<_> = (0..20)
            .map(|n| {
                let (node, id, gate) = (&node, &ids[n], &gates[n]);
                s.spawn(move || node.hold(id, 1_000 + n as u64, gate))
            })
            .collect();
        gates.iter().for_each(|gate| owner.await_waiting(gate, 1));
        for (n, request) in asking.into_iter().enumerate().rev() {
            assert!(!request.is_finished());
            owner.open_gate(&gates[n]);
            assert_eq!(request.join().unwrap(), Ok(1_000 + n as u64));
        }
    });
    assert_eq!(node.count(Counter::RepliesLate), 0);
}

/// The request's metadata is for the handler; the reply brings none of it, and no key of it is a
/// way back.
///
/// Proves R4-2.
#[test]
fn metadata_is_no_way_back() {
    let world = World::new();
    let owner = world.child(&world.setup("owner"));
    let (node, _) = world.node(&world.setup("caller"));
    let (second, _) = world.node(&world.setup("second"));
    owner.create("a");
    second.make("listener", None).unwrap();
    let long = vec![7; 900];
    let entries = [("reply_to", b"listener".as_slice()), ("rid", b"second"), ("bulk", &long)];
    let metadata = Metadata::new(entries).unwrap();
    let handle = node.actor("a").with_metadata(metadata);
    for _ in 0..10 {
        let shown = handle.request(Show {}).wait().unwrap();
        let expected: Vec<(String, Vec<u8>)> =
            entries.iter().map(|(k, v)| ((*k).to_owned(), v.to_vec())).collect();
        assert_eq!(shown.metadata, expected);
        // A raw reply is name, content type and bytes, as the handler gave them.
        let packet = raw(b"plain");
        assert_eq!(handle.request(packet.clone()).wait(), Ok(packet));
    }
    // One that states none gets none.
    assert_eq!(node.show("a").unwrap().metadata, []);
    assert_eq!(second.show("listener").unwrap().notes, [0; 0]);
    assert_eq!(second.count(Counter::AdmittedRemote), 0);
}

/// A request inside a turn gives its answer to that very await; other messages wait for the turn.
///
/// Proves R4-3.
#[test]
fn a_request_inside_a_turn_resumes_that_turn() {
    let world = World::new();
    let left = world.child(&world.setup("left"));
    let right = world.child(&world.setup("right"));
    let (node, _) = world.node(&world.setup("caller"));
    let made = left.create("asker");
    right.create("asked");
    let gate = world.gate("asked");
    std::thread::scope(|s| {
        let asking = s.spawn(|| node.ask("asker", ask(1, "asked", &gate)));
        right.await_waiting(&gate, 1);
        let behind = s.spawn(|| node.note("asker", 2));
        eventually("the second message to be there", || {
            (left.counter(Counter::AdmittedRemote) == 2).then_some(())
        });
        assert!(!behind.is_finished(), "the turn keeps its gate");
        right.open_gate(&gate);
        let asked = asking.join().unwrap().unwrap();
        assert_eq!(asked.reply, Ok(1));
        assert_eq!(asked.generation_before, made.generation);
        assert_eq!(asked.generation_after, made.generation);
        assert_eq!(behind.join().unwrap(), Ok(3));
    });
    assert_eq!(left.notes("asker"), [1, 1001, 2], "the turns did not overlap");
    assert_eq!(right.notes("asked"), [1]);
}

/// A turn gives up on its request, its Actor is destroyed and made anew, and the new incarnation asks
/// the same: the old reply, when it comes, is nobody's.
///
/// Proves R4-3, R4-6.
#[test]
fn an_old_reply_never_reaches_a_new_incarnation() {
    let world = World::new();
    let left = world.child(&world.setup("left"));
    let right = world.child(&world.setup("right"));
    let (node, _) = world.node(&world.setup("caller"));
    let (old, new) = (world.gate("old"), world.gate("new"));
    let first = left.create("asker");
    right.create("asked");
    // The way is known to all before time counts.
    right.open_gate("open");
    assert_eq!(node.ask("asker", ask(0, "asked", "open")).unwrap().reply, Ok(0));
    let given_up = node.ask("asker", Ask { timeout_ms: 1_500, ..ask(1, "asked", &old) }).unwrap();
    let (kind, text) = given_up.reply.unwrap_err();
    assert_eq!(ErrorKind::from_wire(kind), Some(ErrorKind::DeadlineExceeded), "{text}");
    right.await_waiting(&old, 1);
    left.destroy(&first).unwrap();
    let second = left.create("asker");
    std::thread::scope(|s| {
        let asking = s.spawn(|| node.ask("asker", ask(2, "asked", &new)));
        eventually("the new request to be there", || {
            (right.counter(Counter::AdmittedRemote) == 3).then_some(())
        });
        right.open_gate(&old);
        eventually("the old reply to come", || {
            (left.counter(Counter::RepliesLate) == 1).then_some(())
        });
        right.await_waiting(&new, 1);
        assert!(!asking.is_finished());
        right.open_gate(&new);
        let asked = asking.join().unwrap().unwrap();
        assert_eq!((asked.reply, asked.generation_after), (Ok(2), second.generation));
    });
    assert_eq!(left.notes("asker"), [2, 1002]);
}

/// A turn that asks itself would wait for its own end: it is told so at once.
///
/// Proves R4-3.
#[test]
fn a_request_to_the_own_gate_fails_at_once() {
    let world = World::new();
    let owner = world.child(&world.setup("owner"));
    let (node, _) = world.node(&world.setup("caller"));
    owner.create("there");
    node.make("here", None).unwrap();
    for id in ["there", "here"] {
        let asked = node.ask(id, ask(1, id, "")).unwrap();
        let (kind, text) = asked.reply.unwrap_err();
        assert_eq!(ErrorKind::from_wire(kind), Some(ErrorKind::InvalidOperation));
        assert!(text.contains(id) && text.contains("gate"), "{text}");
        assert_eq!(node.show(id).unwrap().notes, [1, 1001], "the turn went on");
    }
}

/// Case: A↔B cyclic requests cap 1 ⇒ both end by deadline.
///
/// Proves R4-3, R4-6.
#[test]
fn a_cycle_of_requests_ends_by_the_deadlines() {
    let world = World::new();
    let left = world.child(&world.setup("left"));
    let right = world.child(&world.setup("right"));
    let (node, _) = world.node(&world.setup("caller"));
    left.create("a");
    right.create("b");
    std::thread::scope(|s| {
        let brief = |number, target: &str| Ask { timeout_ms: 700, ..ask(number, target, "") };
        let (to_a, to_b) = (brief(1, "b"), brief(2, "a"));
        let one = s.spawn(|| node.ask("a", to_a));
        let two = s.spawn(|| node.ask("b", to_b));
        // Both turns run, each waits for the other; or one was over before the other began.
        let replies = [one.join().unwrap().unwrap().reply, two.join().unwrap().unwrap().reply];
        for reply in replies {
            if let Err((kind, text)) = reply {
                assert_eq!(ErrorKind::from_wire(kind), Some(ErrorKind::DeadlineExceeded), "{text}");
            }
        }
    });
    // Neither is stuck, and what expired in a queue did not run.
    assert!(node.note("a", 9).is_ok() && node.note("b", 9).is_ok());
}

/// Handlers that fail, panic, are missing or get bytes they cannot read: each answers with its kind
/// and a sentence.
///
/// Proves R4-5.
#[test]
fn a_failure_is_a_structured_answer() {
    let world = World::new();
    let owner = world.child(&world.setup("owner"));
    let (node, _) = world.node(&world.setup("caller"));
    for id in ["a", "b"] {
        owner.create(id);
    }
    let long = "long ".repeat(1_000);
    for text in ["", "the ü\u{1f600} reason", &long] {
        let fail = Fail { kind: ErrorKind::Rejected as u8, text: text.into() };
        let e = node.actor("a").request(fail).wait().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Rejected);
        if !text.is_empty() && text.len() < 900 {
            assert_eq!(e.text(), text);
        }
    }
    let text =
        refused(node.actor("a").request(garbage("probe.hold")).wait(), ErrorKind::ProtocolError);
    assert!(text.contains("probe.hold") && text.contains("32 bytes"), "{text}");
    let text =
        refused(node.actor("a").request(super::probe::Unknown {}).wait(), ErrorKind::NotFound);
    assert!(text.contains("probe.unknown") && text.contains("\"probe\""), "{text}");
    assert_eq!(node.note("a", 1), Ok(1), "the Actor goes on");
    // A panic tears the state: the Actor is closed, its queue told, its id free again.
    let text = refused(node.actor("b").request(Explode {}).wait(), ErrorKind::InternalFailure);
    assert!(text.contains("told to panic"), "{text}");
    assert_eq!(owner.counter(Counter::TurnsPanicked), 1);
    eventually("the panicked Actor to be gone", || {
        (node.note("b", 1).unwrap_err().kind() == ErrorKind::NotFound).then_some(())
    });
    owner.create("b");
    assert_eq!(eventually("it to be found", || node.note("b", 1).ok()), 1);
}

/// One-way, nobody can be told: it is dropped and counted, and the requester is not looked for.
///
/// Proves R4-5.
#[test]
fn a_one_way_failure_is_counted() {
    let world = World::new();
    let owner = world.child(&world.setup("owner"));
    let (node, _) = world.node(&world.setup("caller"));
    owner.create("a");
    let actor = node.actor("a");
    let rows: usize = owner.ask(Command::RowReads);
    actor.send(Fail { kind: ErrorKind::Rejected as u8, text: "no".into() }).wait().unwrap();
    actor.send(garbage("probe.note")).wait().unwrap();
    actor.send(super::probe::Unknown {}).wait().unwrap();
    node.note("a", 1).unwrap();
    assert_eq!(owner.counter(Counter::OneWayFailed), 3);
    assert_eq!(owner.counter(Counter::RepliesSent), 1);
    assert_eq!(owner.ask::<usize>(Command::RowReads), rows);
}

/// Case: Reply at T+1 ⇒ dropped, counted. Slot reuse + old reply ⇒ refused.
///
/// Requests end by their deadline; new ones take their places; then the old replies come: each is
/// counted, none reaches a new request.
///
/// Proves R4-6, R0-4.
#[test]
fn a_late_reply_is_dropped_and_counted() {
    let world = World::new();
    let owner = world.child(&world.setup("owner"));
    let (node, _) = world.node(&world.setup("caller"));
    let ms = Duration::from_millis;
    let (old, new) = (world.gate("old"), world.gate("new"));
    let ids: Vec<String> = (0..10).map(|n| format!("a{n}")).collect();
    for id in &ids {
        owner.create(id);
        node.note(id, 0).unwrap();
    }
    std::thread::scope(|s| {
        for id in &ids {
            let hold = Hold { number: 1, gate: old.clone() };
            let late = node.actor(id).request(hold).timeout(ms(1_500));
            s.spawn(|| refused(late.wait(), ErrorKind::DeadlineExceeded));
        }
    });
    owner.await_waiting(&old, 10);
    assert_eq!(node.count(Counter::RequestsTimedOut), 10);
    std::thread::scope(|s| {
        let newer: Vec<_> = ids
            .iter()
            .map(|id| {
                let (node, new) = (&node, &new);
                s.spawn(move || node.hold(id, 2, new))
            })
            .collect();
        eventually("the new requests to be there", || {
            (owner.counter(Counter::AdmittedRemote) == 30).then_some(())
        });
        owner.open_gate(&old);
        eventually("the old replies to come", || {
            (node.count(Counter::RepliesLate) == 10).then_some(())
        });
        assert!(newer.iter().all(|request| !request.is_finished()));
        owner.open_gate(&new);
        for request in newer {
            assert_eq!(request.join().unwrap(), Ok(2));
        }
    });
    assert_eq!(node.count(Counter::RepliesLate), 10);
}

/// A request that is given up ends for its caller and for nobody else; its reply is late.
///
/// Proves R4-6.
#[test]
fn a_given_up_request_is_over() {
    let world = World::new();
    let owner = world.child(&world.setup("owner"));
    let (node, _) = world.node(&world.setup("caller"));
    owner.create("a");
    let gate = world.gate("turn");
    let polled = async {
        let mut request = std::pin::pin!(std::future::IntoFuture::into_future(
            node.actor("a").request(Hold { number: 1, gate: gate.clone() })
        ));
        std::future::poll_fn(|cx| {
            let is_pending = std::future::Future::poll(request.as_mut(), cx).is_pending();
            std::task::Poll::Ready(is_pending)
        })
        .await
        // Dropped here, after one look.
    };
    assert!(block_on(polled));
    eventually("the request to be given up", || {
        (node.count(Counter::RequestsCancelled) == 1).then_some(())
    });
    // It may have been submitted before; if so, it runs, and its reply finds nobody.
    if node.count(Counter::SubmittedRemote) == 1 {
        owner.await_waiting(&gate, 1);
        owner.open_gate(&gate);
        eventually("its reply to come", || (node.count(Counter::RepliesLate) == 1).then_some(()));
    }
    assert!(node.note("a", 2).is_ok());
}

/// A caller that shuts down ends its pending requests with ShuttingDown; a target that shuts down
/// tells those that wait for it; each request ends once.
///
/// Proves R4-6.
#[test]
fn a_shutdown_answers_everything_pending() {
    let world = World::new();
    let owner = world.child(&world.setup("owner"));
    let (node, _) = world.node(&world.setup("caller"));
    let (staying, _) = world.node(&world.setup("staying"));
    let gate = world.gate("turn");
    owner.create("a");
    node.make("own", None).unwrap();
    std::thread::scope(|s| {
        let mut pending = vec![s.spawn(|| node.hold("a", 1, "never-opened"))];
        owner.await_waiting("never-opened", 1);
        pending.push(s.spawn(|| node.note("a", 2)));
        pending.push(s.spawn(|| node.hold("own", 3, &gate)));
        let from_elsewhere = s.spawn(|| staying.hold("own", 4, &gate));
        eventually("all to be there", || {
            let there = owner.counter(Counter::AdmittedRemote) == 2;
            (there && node.count(Counter::AdmittedRemote) == 1).then_some(())
        });
        // The deadline is short, and the turns do not end by it.
        block_on(node.shutdown(Duration::from_millis(300)));
        let own = pending.pop().unwrap().join().unwrap().unwrap_err();
        for request in pending {
            refused(request.join().unwrap(), ErrorKind::ShuttingDown);
        }
        for e in [own, from_elsewhere.join().unwrap().unwrap_err()] {
            assert!(matches!(e.kind(), ErrorKind::ShuttingDown | ErrorKind::Unavailable), "{e}");
        }
    });
    refused(node.note("a", 5), ErrorKind::ShuttingDown);
    refused(node.actor("a").send(Note { number: 1 }).wait(), ErrorKind::ShuttingDown);
    refused(node.make("b", None), ErrorKind::ShuttingDown);
    refused(block_on(node.actors().find("a")), ErrorKind::ShuttingDown);
    // Twice is the same as once.
    block_on(node.shutdown(Duration::from_secs(1)));
    open_gate(&gate);
}

/// A link is up for the acceptor before the dialer has all of its lanes. What the acceptor sends on
/// the first lanes meanwhile is answered.
///
/// Proves R4-1, R1-3.
#[test]
fn a_request_on_a_link_that_is_still_being_made_is_answered() {
    let world = World::new();
    let proxy = Proxy::new();
    let mut setup = world.setup("acceptor");
    setup.advertise = Some(proxy.endpoint());
    setup.listen = Some(world.free_tcp());
    setup.cores = Some(2);
    setup.request_ms = Some(20_000);
    let (acceptor, _) = world.node(&setup);
    proxy.lead_to(setup.listen.as_ref().unwrap());
    acceptor.make("there", None).unwrap();
    let mut setup = world.setup("dialer");
    setup.cores = Some(2);
    setup.request_ms = Some(20_000);
    let (dialer, _) = world.node(&setup);
    // Enough ids for both lanes.
    let ids: Vec<String> = (0..32).map(|n| format!("a{n}")).collect();
    ids.iter().for_each(|id| drop(dialer.make(id, None).unwrap()));
    proxy.hold_later_connections(true);
    std::thread::scope(|s| {
        let waiting = s.spawn(|| dialer.note("there", 1));
        eventually("the link to be up for one side", || {
            (acceptor.count(Counter::LinksUp) == 1).then_some(())
        });
        assert_eq!(dialer.count(Counter::LinksUp), 0);
        let asking: Vec<_> =
            ids.iter().map(|id| (s.spawn(|| acceptor.note(id, 7)), id.as_str())).collect();
        eventually("an answer on the first lane", || {
            asking.iter().any(|(request, _)| request.is_finished()).then_some(())
        });
        assert_eq!(dialer.count(Counter::LinksUp), 0);
        proxy.hold_later_connections(false);
        for (request, id) in asking {
            assert_eq!(request.join().unwrap(), Ok(1), "{id}");
        }
        assert_eq!(waiting.join().unwrap(), Ok(1));
    });
    assert_eq!(dialer.count(Counter::RepliesUnroutable), 0);
}

/// Case: Link cut after write ⇒ unknown outcome error; ≤1 execution; no resend.
///
/// Proves R4-7, R4-6, R2.6-3.
#[test]
fn a_cut_link_ends_the_request_and_nothing_is_sent_again() {
    let world = World::new();
    let proxy = Proxy::new();
    let mut setup = world.setup("owner");
    setup.advertise = Some(proxy.endpoint());
    setup.listen = Some(world.free_tcp());
    let owner = world.child(&setup);
    proxy.lead_to(setup.listen.as_ref().unwrap());
    owner.create("a");
    let mut setup = world.setup("caller");
    setup.request_ms = Some(20_000);
    let (node, _) = world.node(&setup);
    node.note("a", 0).unwrap();
    for round in 1..=5 {
        let gate = world.gate(&format!("turn-{round}"));
        std::thread::scope(|s| {
            let request = s.spawn(|| node.hold("a", round, &gate));
            owner.await_waiting(&gate, 1);
            proxy.cut();
            let text = refused(request.join().unwrap(), ErrorKind::Unavailable);
            assert!(text.contains("\"a\""), "{text}");
        });
        owner.open_gate(&gate);
        eventually("the link to come back", || {
            node.actor("a").request(Show {}).timeout(Duration::from_secs(2)).wait().ok()
        });
    }
    assert_eq!(owner.notes("a"), [0, 1, 2, 3, 4, 5], "each ran once");
    assert_eq!(node.count(Counter::RequestsLinkLost), 5);
}

/// Case: Blackhole one peer ⇒ others unaffected.
///
/// A peer that says nothing any more holds up its own requests until their deadlines, and nobody
/// else's; silence for the liveness timeout ends its link.
///
/// Proves R4-6, R2.2-8.
#[test]
fn a_silent_peer_holds_up_nobody_else() {
    let world = World::new();
    let proxy = Proxy::new();
    let mut setup = world.brief("silent");
    setup.advertise = Some(proxy.endpoint());
    setup.listen = Some(world.free_tcp());
    let silent = world.child(&setup);
    proxy.lead_to(setup.listen.as_ref().unwrap());
    let lively = world.child(&world.brief("lively"));
    silent.create("s");
    lively.create("l");
    let mut setup = world.brief("caller");
    setup.liveness_ms = Some((2_000, 10_000));
    let (node, _) = world.node(&setup);
    node.note("s", 0).unwrap();
    node.note("l", 0).unwrap();
    proxy.silence(true);
    std::thread::scope(|s| {
        let waiting: Vec<_> = (0..20)
            .map(|n| {
                let node = &node;
                let ms = Duration::from_millis(2_000);
                s.spawn(move || node.actor("s").request(Note { number: n }).timeout(ms).wait())
            })
            .collect();
        for number in 1..=200 {
            node.note("l", number).unwrap();
        }
        for request in waiting {
            let e = request.join().unwrap().unwrap_err();
            assert!(
                matches!(e.kind(), ErrorKind::DeadlineExceeded | ErrorKind::Unavailable),
                "{e}"
            );
        }
    });
    assert_eq!(lively.notes("l").len(), 201);
    // The other side has the shorter patience: it gives the link up.
    eventually("the silent link to be given up", || {
        (silent.counter(Counter::LinksDown) >= 1).then_some(())
    });
}

//! Tests the limit of open accepted connections.

use crate::common::{Rig, accepted, client, clients_in_order, listener, outcome, received};
use megapipe::{Accept, Config, DriverChoice, Event, Handle, Repeat, Source};
use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long nothing may happen when clients have to wait.
const QUIET: Duration = Duration::from_millis(20);

/// Returns a channel with a limit of connections, one of its listeners, and the address.
fn limited(driver: DriverChoice, limit: u32) -> (Rig, Handle, SocketAddr) {
    let config = Config { max_connections: limit, completions: 64, ..Config::default() };
    let mut rig = Rig::with(driver, config);
    let (listener, address) = listener();
    let listening = rig.join(listener);
    (rig, listening, address)
}

#[track_caller]
fn expect_quiet(rig: &mut Rig) {
    let done = rig.dispatch(QUIET).unwrap();
    assert!(done.is_none(), "{done:?}");
}

/// Registers the next connection, of any listener.
#[track_caller]
fn welcome(rig: &mut Rig) -> Handle {
    let socket = accepted(rig.next().event).socket;
    rig.join(socket)
}

/// Closes connections at once, and accepts as many in their place.
#[track_caller]
fn replace(rig: &mut Rig, closed: &[Handle]) -> Vec<Handle> {
    let mut open = Vec::new();
    let mut closing: HashSet<Handle> = closed.iter().copied().collect();
    for handle in closed {
        rig.close(*handle).unwrap();
    }
    while !closing.is_empty() || open.len() < closed.len() {
        let done = rig.next();
        match done.event {
            Event::Close(Ok(())) => assert!(closing.remove(&done.handle)),
            Event::Accept(Ok(accepted)) => open.push(rig.join(accepted.socket)),
            event => panic!("{event:?}"),
        }
        assert!(open.len() + closing.len() <= closed.len(), "more connections than the limit");
    }
    open
}

pub(crate) fn clients_wait_at_the_limit(driver: DriverChoice) {
    for accept in [Accept::descriptors(), Accept::lightweight()] {
        let (mut rig, listening, address) = limited(driver, 3);
        let mut clients = clients_in_order(address, 8);
        for (number, client) in clients.iter_mut().enumerate() {
            client.write_all(&[number as u8]).unwrap();
        }
        rig.accept(listening, accept).unwrap();
        let mut open: Vec<Handle> = (0..3).map(|_| welcome(&mut rig)).collect();
        expect_quiet(&mut rig);
        for (number, client) in clients.iter_mut().enumerate() {
            // The one that was accepted first is served and closed.
            let served = open.remove(0);
            rig.receive(served, Repeat::Once).unwrap();
            assert_eq!(&*received(rig.last(served)), [number as u8]);
            rig.close(served).unwrap();
            let waits = number + 3 < 8;
            for _ in 0..1 + usize::from(waits) {
                let done = rig.next();
                match done.event {
                    Event::Close(Ok(())) => assert_eq!(done.handle, served),
                    Event::Accept(Ok(accepted)) => open.push(rig.join(accepted.socket)),
                    event => panic!("{event:?}"),
                }
            }
            expect_quiet(&mut rig);
            assert_eq!(client.read(&mut [0]).unwrap(), 0, "more than the end");
        }
        assert!(open.is_empty());
    }
}

pub(crate) fn many_closed_at_once_make_room_for_as_many(driver: DriverChoice) {
    let (mut rig, listening, address) = limited(driver, 20);
    let _clients: Vec<TcpStream> = (0..60).map(|_| client(address)).collect();
    rig.accept(listening, Accept::lightweight()).unwrap();
    let mut open: Vec<Handle> = (0..20).map(|_| welcome(&mut rig)).collect();
    for _ in 0..2 {
        expect_quiet(&mut rig);
        open = replace(&mut rig, &open);
    }
    expect_quiet(&mut rig);
}

/// Accepts that repeat end in time.
pub(crate) fn a_burst_is_cut_at_the_limit(driver: DriverChoice) {
    let (mut rig, listening, address) = limited(driver, 100);
    rig.accept(listening, Accept::lightweight()).unwrap();
    rig.flush().unwrap();
    let _clients: Vec<TcpStream> = (0..200).map(|_| client(address)).collect();
    let open: Vec<Handle> = (0..100).map(|_| welcome(&mut rig)).collect();
    expect_quiet(&mut rig);
    replace(&mut rig, &open);
    expect_quiet(&mut rig);
}

/// No listener keeps the last place for itself.
pub(crate) fn the_limit_counts_for_all_listeners(driver: DriverChoice) {
    let (mut rig, first, address) = limited(driver, 1);
    let (second, other_address) = listener();
    let second = rig.join(second);
    for listening in [first, second] {
        rig.accept(listening, Accept::lightweight()).unwrap();
    }
    let _clients: Vec<TcpStream> =
        [address, other_address, other_address, address].into_iter().map(client).collect();
    let mut open = [welcome(&mut rig)];
    for _ in 0..3 {
        expect_quiet(&mut rig);
        open = replace(&mut rig, &open).try_into().unwrap();
    }
    replace_none(&mut rig, open[0]);
    // Each listener still accepts when the other has nobody.
    for address in [other_address, address, other_address] {
        let _client = client(address);
        let handle = welcome(&mut rig);
        replace_none(&mut rig, handle);
    }
}

#[track_caller]
fn replace_none(rig: &mut Rig, handle: Handle) {
    rig.close(handle).unwrap();
    assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
}

/// What the application holds without registering it counts until it is dropped or taken out.
pub(crate) fn what_the_application_holds_counts(driver: DriverChoice) {
    for accept in [Accept::descriptors(), Accept::lightweight()] {
        let (mut rig, listening, address) = limited(driver, 1);
        let _clients = clients_in_order(address, 4);
        rig.accept(listening, accept).unwrap();
        let held = accepted(rig.another(listening)).socket;
        expect_quiet(&mut rig);
        drop(held);
        let held = accepted(rig.another(listening)).socket;
        expect_quiet(&mut rig);
        rig.refuse(held).unwrap();
        let held = accepted(rig.another(listening)).socket;
        expect_quiet(&mut rig);
        let Ok(descriptor) = held.into_descriptor() else { continue };
        // The descriptor does not count, until it is registered as a connection.
        let held = accepted(rig.another(listening)).socket;
        let handle = rig.join(Source::accepted(descriptor));
        drop(held);
        let _last = client(address);
        expect_quiet(&mut rig);
        drop(rig.unregister(handle).unwrap());
        accepted(rig.another(listening));
    }
}

pub(crate) fn accepts_are_counted_and_cancelled_at_the_limit(driver: DriverChoice) {
    let (mut rig, listening, address) = limited(driver, 2);
    let _clients = clients_in_order(address, 6);
    rig.accept(listening, Accept::lightweight().count(3)).unwrap();
    let open = [welcome(&mut rig), welcome(&mut rig)];
    expect_quiet(&mut rig);
    replace_none_but_one(&mut rig, open[0], listening);
    // Two are open, and no more are wanted: closing both makes no more come.
    rig.accept(listening, Accept::lightweight()).unwrap();
    expect_quiet(&mut rig);
    rig.cancel(listening).unwrap();
    assert_eq!(outcome(&rig.last(listening)), Err(libc::ECANCELED));
    replace_none(&mut rig, open[1]);
    expect_quiet(&mut rig);
    rig.accept(listening, Accept::lightweight().count(1)).unwrap();
    accepted(rig.last(listening));
}

/// Closes a connection, in whose place comes the last one that was asked for.
#[track_caller]
fn replace_none_but_one(rig: &mut Rig, handle: Handle, listening: Handle) {
    rig.close(handle).unwrap();
    let mut came = [rig.next(), rig.next()];
    came.sort_by_key(|done| done.handle == listening);
    let [closed, arrived] = came;
    assert!(matches!(closed.event, Event::Close(Ok(()))), "{closed:?}");
    assert!(!arrived.more && arrived.handle == listening, "{arrived:?}");
    rig.join(accepted(arrived.event).socket);
}

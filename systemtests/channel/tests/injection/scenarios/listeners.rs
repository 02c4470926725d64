//! Scenarios of partitioned listeners: two channels of a thread share a listening socket.

use crate::common::listener;
use crate::layer::{armed, shared};
use crate::stage::{Stage, config, errno_of};
use megapipe::{Accept, Accepted, Channel, CpuSet, Event, Handle};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;
use testkit::pin;

/// Shares a listener whose original the first channel registers as well, lets a
/// second channel join and end, and leaves.
pub(crate) fn partition(stage: &mut Stage) {
    let (socket, address) = listener();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    assert!(cpus >= 2, "this test needs two CPUs");
    // SAFETY: the call takes no pointers.
    let here = usize::try_from(unsafe { libc::sched_getcpu() }).expect("a CPU");
    pin(here);
    let elsewhere = usize::from(here == 0);
    let first = join(stage, &socket, &CpuSet::one(here));
    let rest = stage.join(|| socket.try_clone().expect("a duplicate"));
    for handle in [first, rest] {
        stage.call("accept", |channel| channel.accept(handle, Accept::descriptors()));
        stage.note_repeating(handle);
    }
    stage.call("flush", Channel::flush);
    client_is_served(stage, &[first], address);

    // The share of a channel that ends goes to the other one.
    let mut second = Channel::<u64>::with_config(config(stage.driver)).expect("a channel");
    while let Err(error) = armed(|| second.register_listener(&socket, CpuSet::one(elsewhere), 0)) {
        stage.excuse_error("register_listener", &error);
    }
    armed(|| drop(second));
    client_is_served(stage, &[first], address);
    drop(stage.unregister(first));
    client_is_served(stage, &[rest], address);
    drop(socket);
    stage.cancel(rest);
    stage.close(rest);
}

/// Accepts connections of both kinds, each with its peer's address.
pub(crate) fn peers(stage: &mut Stage) {
    for accept in [Accept::descriptors(), Accept::lightweight()] {
        let (listening, address, _listener) = stage.listen();
        for _ in 0..2 {
            let client = crate::common::client(address);
            let accepted = stage.accept(listening, accept.with_peer_address());
            let own = client.local_addr().expect("an address");
            assert_eq!(accepted.peer, Some(own.into()), "{:?}", shared().fault());
            drop(accepted);
        }
        stage.cancel(listening);
        stage.close(listening);
    }
}

fn join(stage: &mut Stage, socket: &TcpListener, cpus: &CpuSet) -> Handle {
    stage.call("register_listener", |channel| channel.register_listener(socket, *cpus, 0))
}

/// Checks that one of the handles accepts a client that connects, and that its message arrives.
fn client_is_served(stage: &mut Stage, handles: &[Handle], address: SocketAddr) {
    let mut client = crate::common::client(address);
    let mut served = next_connection(stage, handles);
    client.write_all(b"hello").expect("write");
    let mut found = [0; 5];
    served.read_exact(&mut found).expect("read");
    assert_eq!(&found, b"hello");
}

fn next_connection(stage: &mut Stage, handles: &[Handle]) -> TcpStream {
    for _ in 0..40 {
        let pause = Duration::from_millis(10);
        let Some(done) = stage.dispatch(pause) else { continue };
        let is_expected = handles.contains(&done.handle);
        match done.event {
            Event::Accept(Ok(_)) if !is_expected => panic!("a connection for another handle"),
            Event::Accept(Ok(Accepted { socket, .. })) => {
                return socket.into_descriptor().expect("a descriptor").into();
            }
            event => {
                stage.excuse("accept", errno_of(&event).expect("an error"));
                let handle = done.handle;
                stage.call("accept", |channel| channel.accept(handle, Accept::descriptors()));
            }
        }
    }
    panic!("the connection does not arrive ({:?})", shared().fault());
}

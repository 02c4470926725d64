//! Resets the connections of a program that was killed, as the kernel does for its own sockets.
//!
//! The program's stack keeps its open connections in [`SharedConnections`], memory that it shares
//! with a process that outlives it ([`Context::record_connections`]). When the program has ended
//! without calling [`SharedConnections::mark_ended`], that process takes over the device and starts
//! to connect from each of the addresses. The peer answers the SYN with an acknowledgement of its
//! own state (RFC 9293, section 3.5.2, half-open connections; RFC 5961, section 4). The stack
//! answers that with a reset, which the peer accepts because its number is the one that the peer
//! sent.

use crate::config::{Config, DeviceKind, Mode};
use crate::device::tap::lacks_link;
use crate::{Context, Descriptor, Family, Mtcp, StartError};
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

pub use crate::shared_connections::SharedConnections;

/// Connections that are reset at the same time.
const BATCH: usize = 1024;
/// How long a batch waits for the peers' answers; no SYN is repeated before.
const ANSWERS: Duration = Duration::from_millis(400);
/// How long the kernel may take to detect the link of a TAP device: it checks once a second.
const LINK: Duration = Duration::from_millis(1100);
/// How long opening the device is retried: the kernel frees it a moment after the program's end.
const DEVICE: Duration = Duration::from_secs(3);

/// Resets connections of a stack that no longer exists, from its addresses.
///
/// # Errors
/// [`StartError`] if the device cannot be opened.
pub fn reset(
    mut config: Config,
    connections: &[(SocketAddr, SocketAddr)],
) -> Result<(), StartError> {
    config.engine.mode = Mode::Complete;
    config.engine.cores = 1;
    config.stat.enabled = false;
    config.capture = None;
    config.grace = Duration::ZERO;
    let mut context = start(&config)?;
    if config.device.kind == DeviceKind::Tap {
        await_link(&config.device.interface);
    }
    for batch in connections.chunks(BATCH) {
        let attempts: Vec<Descriptor> =
            batch.iter().filter_map(|names| attempt(&mut context, *names).ok()).collect();
        wait(&mut context, ANSWERS);
        for descriptor in attempts {
            // Aborting a connection attempt sends nothing.
            let _ = context.abort(descriptor);
        }
    }
    // A peer that answers later gets a reset because no connection matches its segment.
    wait(&mut context, ANSWERS);
    Ok(())
}

fn start(config: &Config) -> Result<Context, StartError> {
    let begin = Instant::now();
    loop {
        match Mtcp::start(config.clone()).and_then(|mtcp| mtcp.context(0)) {
            Err(_) if begin.elapsed() < DEVICE => std::thread::sleep(Duration::from_millis(20)),
            done => return done,
        }
    }
}

/// Waits until the kernel sends through a TAP device again. The kernel detects up to a second later
/// that the device has an owner, and until then drops the peers' answers.
fn await_link(interface: &str) {
    let begin = Instant::now();
    // If the flags cannot be read, the connection attempts are made nevertheless.
    while matches!(lacks_link(interface), Ok(true)) && begin.elapsed() < LINK {
        std::thread::sleep(Duration::from_millis(2));
    }
    // The kernel starts the queue shortly after it sets the flag.
    std::thread::sleep(Duration::from_millis(2));
}

fn attempt(
    context: &mut Context,
    (local, remote): (SocketAddr, SocketAddr),
) -> io::Result<Descriptor> {
    let family = if local.is_ipv4() { Family::V4 } else { Family::V6 };
    let descriptor = context.socket(family)?;
    context.set_nonblocking(descriptor, true)?;
    let on = 1_i32.to_ne_bytes();
    context.setsockopt(descriptor, libc::SOL_SOCKET, libc::SO_REUSEADDR, &on)?;
    context.bind(descriptor, local)?;
    match context.connect(descriptor, remote) {
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(descriptor),
        done => done.map(|()| descriptor),
    }
}

/// Runs the stack for some time.
fn wait(context: &mut Context, time: Duration) {
    let Ok(set) = context.epoll_create() else { return };
    let mut room = [crate::EpollEvent::default()];
    // An error means that the device is gone, and that nothing can be sent.
    let _ = context.epoll_wait(set, &mut room, Some(time));
    let _ = context.close(set);
}

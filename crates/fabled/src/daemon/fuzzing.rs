//! Checks properties of the daemon that hold whatever its clients send; a fuzz target calls it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use fable::packet::{self, Packet};
use fable::page;
use fable::protocol::{
    Access, Announcement, FlowId, Operation, Peer, Role, ToDaemon, ToProcess, Trust, VERSION,
};
use rustix::event::Timespec;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::{Daemon, Options, Signals, limits};
use crate::cluster::Standalone;
use crate::policy::Policy;

const CLIENTS: usize = 3;
/// Most packets of one input; more show nothing new.
const PACKETS_MAX: usize = 64;
/// Turns of the loop after which the daemon has read a packet and answered it.
const TURNS_MAX: usize = 8;

/// The kind of packet in place of which a client closes its connection and opens a new one.
const RECONNECT: u8 = 10;

/// A daemon and its clients.
struct Stage {
    daemon: Daemon,
    clients: [OwnedFd; CLIENTS],
    /// The latest flow that a client got, and its page.
    flow: FlowId,
    page: Option<OwnedFd>,
}

/// Starts a daemon in a directory, and sends it packets from three clients: what the bytes say, or
/// messages with parts from the bytes. Ends with all clients closed.
///
/// # Panics
/// If a property does not hold.
pub fn packets(directory: &Path, mut bytes: &[u8]) {
    let mut stage = Stage::new(directory);
    for _ in 0..PACKETS_MAX {
        let [client, kind, length, rest @ ..] = bytes else { break };
        let (content, behind) = rest.split_at(rest.len().min(usize::from(*length)));
        bytes = behind;
        stage.send(usize::from(*client) % CLIENTS, *kind, content);
        stage.check();
    }
    let Stage { mut daemon, clients, .. } = stage;
    drop(clients);
    turns(&mut daemon);
    assert!(daemon.clients.is_empty(), "a closed client is kept");
    assert_eq!(daemon.names.iter().count(), 0, "a name without a process is kept");
    assert!(daemon.flows.is_empty(), "a flow without ends is kept");
}

impl Stage {
    fn new(directory: &Path) -> Stage {
        let options = Options {
            signals: Signals::catch().expect("a descriptor for signals"),
            socket: directory.join("fabled"),
            policy: Policy::built_in(),
            read_policy: Box::new(|| Ok(Policy::built_in())),
            cluster: Box::new(Standalone::new("here".to_owned())),
        };
        let mut daemon = Daemon::start(options).expect("a daemon");
        let clients = std::array::from_fn(|_| connected(&daemon));
        turns(&mut daemon);
        Stage { daemon, clients, flow: FlowId(0), page: None }
    }

    /// Sends a packet and lets the daemon handle it.
    fn send(&mut self, client: usize, kind: u8, content: &[u8]) {
        if kind & 0x1f == RECONNECT {
            self.clients[client] = connected(&self.daemon);
            return turns(&mut self.daemon);
        }
        let message = self.message(kind, content);
        let bytes = match &message {
            Some(message) => serde_json::to_vec(message).expect("a message can be written"),
            None => content.to_vec(),
        };
        let is_announcement = matches!(message, Some(ToDaemon::Announce(_)));
        let count = if is_announcement { 1 } else { usize::from(kind >> 6) };
        let null = self.clients[client].as_fd();
        let descriptor = self.page.as_ref().map_or(null, AsFd::as_fd);
        let descriptors: Vec<BorrowedFd<'_>> = vec![descriptor; count];
        // Fails for an empty packet, and if the daemon has closed the connection.
        let _ = packet::send(self.clients[client].as_fd(), &bytes, &descriptors);
        turns(&mut self.daemon);
        for client in 0..CLIENTS {
            self.read(client);
        }
    }

    /// Returns the message of a kind, with numbers and names from the content; `None` for bytes
    /// that are sent as they are.
    fn message(&self, kind: u8, content: &[u8]) -> Option<ToDaemon> {
        let byte = |at: usize| content.get(at).copied().unwrap_or(0);
        let (request, flow) = (u64::from(byte(0)), self.flow);
        let text = || String::from_utf8_lossy(content.get(1..).unwrap_or_default()).into_owned();
        let instance = Some((byte(1) % 4).to_string()).filter(|_| byte(1) & 8 == 0);
        let name = match byte(1) & 16 {
            0 => ["fable://a", "fable://b"][usize::from(byte(1) >> 7)].to_owned(),
            _ => "tcp://localhost:1".to_owned(),
        };
        let name = instance.map_or(name.clone(), |instance| format!("{name}/{instance}"));
        let name: fable::Name = name.parse().ok()?;
        let role = if byte(2) & 1 == 0 { Role::Leader } else { Role::Follower };
        let trust = if byte(2) & 2 == 0 { Trust::Trusted } else { Trust::Untrusted };
        let transport = || ["mempipe", "unix", "tcp", "tls", "auto"][usize::from(byte(3)) % 5];
        let users = content.get(4..).unwrap_or_default().iter().map(|byte| u32::from(*byte));
        Some(match kind & 0x1f {
            0 => ToDaemon::Hello { version: VERSION, program: text() },
            1 => {
                let access = Access { users: users.collect(), groups: Vec::new() };
                ToDaemon::Register { request, name, access, trust }
            }
            2 => ToDaemon::Unregister { name },
            3 => {
                let transport = (byte(2) & 4 != 0).then(|| transport().to_owned());
                let owner = (byte(2) & 8 != 0).then_some(u32::from(byte(4)));
                ToDaemon::Connect { request, name, trust, transport, owner }
            }
            4 => {
                let (epoch, pause_ns) = (request as u32, u64::MAX);
                ToDaemon::Moved { flow, epoch, transport: transport().to_owned(), pause_ns }
            }
            5 => ToDaemon::MoveFailed { flow, transport: transport().to_owned(), reason: text() },
            6 => ToDaemon::Ended { flow, reason: text() },
            7 => ToDaemon::Announce(Announcement {
                flow,
                name,
                role,
                peer: Peer { host: text(), pid: 1, uid: 0, gid: 0, program: text() },
                epoch: request as u32,
                transport: transport().to_owned(),
                trust,
                protected: byte(2) & 4 != 0,
                local: byte(2) & 8 != 0,
            }),
            8 => ToDaemon::Orders { flow, orders: serde_json::from_str(&text()).ok()? },
            9 => {
                let transport = transport().to_owned();
                let operation = match byte(2) % 7 {
                    0 => Operation::Names,
                    1 => Operation::Flows,
                    2 => Operation::Move { flow, transport },
                    3 => Operation::Why { flow },
                    4 => Operation::Protect { flow, protected: byte(3) & 8 != 0 },
                    5 => Operation::Events,
                    _ => Operation::Users,
                };
                ToDaemon::Operate { request, operation }
            }
            _ => return None,
        })
    }

    /// Reads what the daemon has sent to a client.
    fn read(&mut self, client: usize) {
        while let Ok(Some(packet)) = packet::receive(self.clients[client].as_fd()) {
            let Packet { bytes, descriptors, has_lost_descriptors } = packet;
            let message: ToProcess = serde_json::from_slice(&bytes).expect("a message we know");
            assert!(!has_lost_descriptors, "{message:?}");
            if let ToProcess::Connected { flow, .. } | ToProcess::Incoming { flow, .. } = message {
                assert!((2..=3).contains(&descriptors.len()), "{message:?}");
                self.flow = flow;
                self.page = descriptors.into_iter().nth(1);
                let page = self.page.as_ref().expect("there are two");
                let made = page::made_for(page.as_fd()).expect("it is a file of memory");
                assert_eq!(made.map(|(flow, _)| flow), Some(flow));
            } else {
                assert!(descriptors.is_empty(), "{message:?}");
            }
        }
    }

    /// Checks that the daemon's tables agree with each other.
    fn check(&self) {
        let Daemon { clients, names, flows, .. } = &self.daemon;
        let held: usize = clients.values().map(|client| client.names).sum();
        assert_eq!(held, names.iter().count(), "a client's count of names is wrong");
        assert!(flows.len() <= PACKETS_MAX);
        for client in clients.values() {
            assert!(client.queued() <= limits::QUEUE_MAX);
        }
    }
}

/// Returns a new connection to the daemon.
fn connected(daemon: &Daemon) -> OwnedFd {
    let address = SocketAddrUnix::new(daemon.path()).expect("the path is short");
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let socket = socket.expect("a socket");
    connect(&socket, &address).expect("the daemon listens");
    socket
}

/// Lets the daemon handle everything that has arrived.
fn turns(daemon: &mut Daemon) {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    for _ in 0..TURNS_MAX {
        assert!(daemon.turn(Some(&now)).expect("epoll_wait works"), "there was a signal");
    }
}

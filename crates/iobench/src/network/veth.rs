//! The path of veth(4) pairs: clients and servers in a namespace each, connected by the kernel's
//! own devices with their default offloads.
//!
//! All servers on the kernel's TCP share one veth pair. A server or client on user-level TCP gets
//! another, because an AF_XDP program on a device changes how every packet passes it (veth leaves
//! its fast path and loses its segmentation offload), and that must not slow down the other
//! servers. On a pair each side's address belongs either to the kernel or to a stack alone.
//!
//! The kernel processes a received packet on the CPU and in the time of the sender, so only the CPU
//! time of both sides together is the cost of a packet.
//!
//! Namespaces and devices have no names outside, and exist only as long as this process has their
//! descriptors open, so they disappear however it ends.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use ::sys::netlink::Request;

use crate::error::{Context, Error, Result};
use crate::network::namespace::{self, HostSettings, make, set_addresses, switch_on};
use crate::network::{Entered, MOST_CLIENT_ADDRESSES};

/// Prefix length of the network of a pair's addresses.
pub(crate) const PREFIX_BITS: u8 = 24;
/// Most veth pairs. Their networks are 10.78.1.0/24 and so on.
const MOST_CABLES: u8 = 250;
const MOST_QUEUES: usize = 256;
/// The attribute of a veth pair that describes the other end (`VETH_INFO_PEER`).
const VETH_INFO_PEER: u16 = 1;
const SUPPORT: &str =
    "the kernel needs CONFIG_NET_NS and CONFIG_VETH, and the process CAP_NET_ADMIN";

/// The owner of the address at one end of a veth pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The kernel's TCP has the address.
    Kernel,
    /// A user-level stack of some process has the address alone.
    Stack,
}

/// A veth pair between the two namespaces.
#[derive(Debug, Clone)]
pub(crate) struct VethPair {
    number: u8,
    pub(crate) server_address: Ipv4Addr,
    /// The first is the default of clients on the kernel's TCP.
    pub(crate) client_addresses: Vec<Ipv4Addr>,
}

impl VethPair {
    /// Returns the device on the servers' side.
    pub(crate) fn server_device(&self) -> String {
        format!("server{}", self.number)
    }

    /// Returns the device on the clients' side.
    pub(crate) fn client_device(&self) -> String {
        client_device(self.number)
    }
}

fn client_device(number: u8) -> String {
    format!("client{number}")
}

/// Two namespaces and the veth pairs between them.
pub(crate) struct Veth {
    client: Arc<OwnedFd>,
    server: Arc<OwnedFd>,
    shared: VethPair,
    /// The number of the last pair.
    cables: u8,
}

/// The shared pair's number.
const SHARED: u8 = 1;

impl Veth {
    /// Creates the namespaces, and the pair that servers on the kernel's TCP share, with `queues`
    /// queues and `client_addresses` addresses for clients, 1 to 250. An unprivileged process moves
    /// permanently into a user namespace, which it can only while it has a single thread: call this
    /// early.
    pub(crate) fn create(queues: usize, client_addresses: usize) -> Result<Veth> {
        let settings = HostSettings::read();
        namespace::acquire_privilege()?;
        let furnish = || {
            switch_on("lo")?;
            namespace::current().map(Arc::new)
        };
        let client = make(&settings, furnish)?;
        let server = make(&settings, furnish)?;
        let nothing = VethPair {
            number: 0,
            server_address: Ipv4Addr::UNSPECIFIED,
            client_addresses: Vec::new(),
        };
        let mut veth = Veth { client, server, shared: nothing, cables: 0 };
        veth.shared = veth.lay_cable(queues, End::Kernel, End::Kernel, client_addresses)?;
        Ok(veth)
    }

    /// Returns the shared pair, for servers and clients on the kernel's TCP.
    pub(crate) fn shared(&self) -> &VethPair {
        &self.shared
    }

    /// Creates another pair with `queues` queues in each direction at both ends, and as many
    /// addresses for clients on the kernel's TCP as the shared one has.
    pub(crate) fn add_cable(
        &mut self,
        queues: usize,
        server: End,
        client: End,
    ) -> Result<VethPair> {
        self.lay_cable(queues, server, client, self.shared.client_addresses.len())
    }

    /// Reserves a network whose device another process creates on the clients' side, such as a TAP
    /// device. Both ends have the addresses of the returned `VethPair`.
    pub(crate) fn reserve(&mut self) -> Result<VethPair> {
        self.number_cable(self.shared.client_addresses.len())
    }

    /// Sets the client's address on a device that a process has created on the clients' side.
    pub(crate) fn furnish_client(&self, veth_pair: &VethPair, device: &str) -> Result<()> {
        let _entered = self.enter_client()?;
        set_addresses(device, &veth_pair.client_addresses, PREFIX_BITS)?;
        switch_on(device)
    }

    /// Removes all pairs but the shared one; their servers must have ended.
    pub(crate) fn remove_cables(&mut self) -> Result<()> {
        let _entered = self.enter_client()?;
        while self.cables > SHARED {
            match remove(&client_device(self.cables)) {
                // A device that a process created disappears with the process.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
                removed => removed.context("remove a veth pair", SUPPORT)?,
            }
            self.cables -= 1;
        }
        Ok(())
    }

    /// Returns the namespace of servers.
    pub(crate) fn server_namespace(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.server)
    }

    /// Returns the namespace of clients.
    pub(crate) fn client_namespace(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.client)
    }

    /// Moves the calling thread to the clients' side until the guard is dropped.
    pub(crate) fn enter_client(&self) -> Result<Entered> {
        Entered::new(&self.client)
    }

    fn number_cable(&mut self, client_addresses: usize) -> Result<VethPair> {
        if !(1..=MOST_CLIENT_ADDRESSES).contains(&client_addresses) {
            return Err(Error::setup(
                format!("{client_addresses} client addresses are out of range"),
                format!("choose 1 to {MOST_CLIENT_ADDRESSES}"),
            ));
        }
        if self.cables == MOST_CABLES {
            return Err(Error::setup(
                format!("there are no more than {MOST_CABLES} veth pairs"),
                "compare fewer servers, or fewer --cores, at a time",
            ));
        }
        self.cables += 1;
        let number = self.cables;
        let server_address = Ipv4Addr::new(10, 78, number, 1);
        let client_addresses = clients_of(server_address, client_addresses);
        Ok(VethPair { number, server_address, client_addresses })
    }

    fn lay_cable(
        &mut self,
        queues: usize,
        server: End,
        client: End,
        client_addresses: usize,
    ) -> Result<VethPair> {
        let veth_pair = self.number_cable(client_addresses)?;
        let (server_device, client_device) = (veth_pair.server_device(), veth_pair.client_device());
        let entered = self.enter_client()?;
        let queues = queues.clamp(1, MOST_QUEUES) as u32;
        create_pair(&client_device, &server_device, &self.server, queues)
            .context("create a veth pair", SUPPORT)?;
        if client == End::Kernel {
            set_addresses(&client_device, &veth_pair.client_addresses, PREFIX_BITS)?;
        }
        switch_on(&client_device)?;
        drop(entered);
        let _entered = Entered::new(&self.server)?;
        if server == End::Kernel {
            set_addresses(&server_device, &[veth_pair.server_address], PREFIX_BITS)?;
        }
        switch_on(&server_device)?;
        Ok(veth_pair)
    }

    /// Returns a description of the path.
    pub(crate) fn describe() -> &'static str {
        "veth pairs between two namespaces, the kernel's default offloads; a receiver's part of \
         the kernel runs in the time of the sender, so that only the CPU time of both sides \
         together says what a transaction costs"
    }

    /// Returns the addresses of clients on the kernel's TCP on the pair to a server.
    pub(crate) fn sources(&self, server: IpAddr) -> Vec<IpAddr> {
        let IpAddr::V4(server) = server else { return Vec::new() };
        let clients = clients_of(server, self.shared.client_addresses.len());
        clients.into_iter().map(IpAddr::from).collect()
    }
}

/// Returns the addresses after the server's.
fn clients_of(server: Ipv4Addr, count: usize) -> Vec<Ipv4Addr> {
    (1..=count as u32).map(|host| Ipv4Addr::from_bits(server.to_bits() + host)).collect()
}

/// Removes a device of the calling thread's namespace, and its peer.
fn remove(device: &str) -> std::io::Result<()> {
    let mut request = Request::new(libc::RTM_DELLINK, libc::NLM_F_ACK);
    request.interface(0);
    request.text(libc::IFLA_IFNAME, device);
    request.carry_out()
}

/// Creates a pair whose near end is in the calling thread's namespace.
fn create_pair(near: &str, far: &str, namespace: &OwnedFd, queues: u32) -> std::io::Result<()> {
    let queues = queues.to_ne_bytes();
    let flags = libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    let mut request = Request::new(libc::RTM_NEWLINK, flags);
    request.interface(0);
    request.text(libc::IFLA_IFNAME, near);
    request.attribute(libc::IFLA_NUM_TX_QUEUES, &queues);
    request.attribute(libc::IFLA_NUM_RX_QUEUES, &queues);
    let information = request.begin(libc::IFLA_LINKINFO);
    request.text(libc::IFLA_INFO_KIND, "veth");
    let data = request.begin(libc::IFLA_INFO_DATA);
    let peer = request.begin(VETH_INFO_PEER);
    request.interface(0);
    request.text(libc::IFLA_IFNAME, far);
    request.attribute(libc::IFLA_NET_NS_FD, &namespace.as_raw_fd().to_ne_bytes());
    request.attribute(libc::IFLA_NUM_TX_QUEUES, &queues);
    request.attribute(libc::IFLA_NUM_RX_QUEUES, &queues);
    for nest in [peer, data, information] {
        request.end(nest);
    }
    request.carry_out()
}

#[cfg(test)]
#[path = "veth_tests.rs"]
mod tests;

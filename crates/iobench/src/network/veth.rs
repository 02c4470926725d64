//! The path of veth(4) pairs: clients and servers in a namespace each, joined by cables of the
//! kernel's own, with its offloads as it has them by default.
//!
//! All of the kernel's servers share one cable. A server or client that brings a TCP of its own
//! gets another, because a program for AF_XDP on a device changes the way of every packet through
//! it (it leaves the fast path of veth and its segmentation offload), and nobody else shall pay for
//! that. On a cable each side's address belongs either to the kernel or to a stack alone.
//!
//! The receiver's part of the kernel runs on the CPU and in the time of the sender, so only the CPU
//! time of both sides together says what a packet costs.
//!
//! Namespaces and devices have no names outside, and live as long as descriptors of this process:
//! when it ends, however it ends, they are gone.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use crate::error::{Context, Error, Result};
use crate::network::namespace::{self, HostSettings, make, set_addresses, switch_on};
use crate::network::netlink::Request;
use crate::network::{Entered, MOST_CLIENT_ADDRESSES};

const NETMASK: Ipv4Addr = Ipv4Addr::new(255, 255, 255, 0);
/// Bits of the network that a cable's addresses are in.
pub(crate) const PREFIX_BITS: u8 = 24;
/// The cables' networks are 10.78.1.0/24 and so on.
const MOST_CABLES: u8 = 250;
const MOST_QUEUES: usize = 256;
/// The attribute of a veth pair that describes the other end (`VETH_INFO_PEER`).
const VETH_INFO_PEER: u16 = 1;
const SUPPORT: &str =
    "the kernel needs CONFIG_NET_NS and CONFIG_VETH, and the process CAP_NET_ADMIN";

/// Whose TCP is at one end of a cable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The kernel's, which has the address.
    Kernel,
    /// A stack's of some process, which has the address to itself.
    Stack,
}

/// A cable between the two namespaces.
#[derive(Debug, Clone)]
pub(crate) struct Cable {
    number: u8,
    pub(crate) server_address: Ipv4Addr,
    /// The first is what the kernel's clients get without asking.
    pub(crate) client_addresses: Vec<Ipv4Addr>,
}

impl Cable {
    /// The device on the servers' side.
    pub(crate) fn server_device(&self) -> String {
        format!("server{}", self.number)
    }

    /// The device on the clients' side.
    pub(crate) fn client_device(&self) -> String {
        client_device(self.number)
    }
}

fn client_device(number: u8) -> String {
    format!("client{number}")
}

/// Two namespaces and the cables between them.
pub(crate) struct Veth {
    client: Arc<OwnedFd>,
    server: Arc<OwnedFd>,
    shared: Cable,
    /// The number of the last cable.
    cables: u8,
}

/// The shared cable's number.
const SHARED: u8 = 1;

impl Veth {
    /// Creates the namespaces, and the cable that the kernel's servers share with `queues` queues,
    /// whose clients have `client_addresses` addresses, 1 to 250. Without root's rights the process
    /// moves into a user namespace for good, which it can only while it has a single thread: call
    /// this early.
    pub(crate) fn create(queues: usize, client_addresses: usize) -> Result<Veth> {
        let settings = HostSettings::read();
        namespace::acquire_privilege()?;
        let furnish = || {
            switch_on("lo")?;
            namespace::current().map(Arc::new)
        };
        let client = make(&settings, furnish)?;
        let server = make(&settings, furnish)?;
        let nothing = Cable {
            number: 0,
            server_address: Ipv4Addr::UNSPECIFIED,
            client_addresses: Vec::new(),
        };
        let mut veth = Veth { client, server, shared: nothing, cables: 0 };
        veth.shared = veth.lay_cable(queues, End::Kernel, End::Kernel, client_addresses)?;
        Ok(veth)
    }

    /// The cable of those who have no TCP of their own.
    pub(crate) fn shared(&self) -> &Cable {
        &self.shared
    }

    /// Lays another cable, with so many queues in each direction at both ends, and as many addresses
    /// for clients of the kernel as the shared one has.
    pub(crate) fn add_cable(&mut self, queues: usize, server: End, client: End) -> Result<Cable> {
        self.lay_cable(queues, server, client, self.shared.client_addresses.len())
    }

    /// Numbers a network whose device some process will make on the clients' side, such as a TAP
    /// device. Both ends have their addresses from `Cable`.
    pub(crate) fn reserve(&mut self) -> Result<Cable> {
        self.number_cable(self.shared.client_addresses.len())
    }

    /// Gives the client's address to a device that a process has made on the clients' side.
    pub(crate) fn furnish_client(&self, cable: &Cable, device: &str) -> Result<()> {
        let _entered = self.enter_client()?;
        set_addresses(device, &cable.client_addresses, NETMASK)?;
        switch_on(device)
    }

    /// Takes all cables away but the shared one, whose servers must have ended.
    pub(crate) fn remove_cables(&mut self) -> Result<()> {
        let _entered = self.enter_client()?;
        while self.cables > SHARED {
            match remove(&client_device(self.cables)) {
                // What a process has made goes with it.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
                removed => removed.context("remove a veth pair", SUPPORT)?,
            }
            self.cables -= 1;
        }
        Ok(())
    }

    /// Where servers belong.
    pub(crate) fn server_namespace(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.server)
    }

    /// Where clients belong.
    pub(crate) fn client_namespace(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.client)
    }

    /// Moves the calling thread to the clients' side until the guard is dropped.
    pub(crate) fn enter_client(&self) -> Result<Entered> {
        Entered::new(&self.client)
    }

    fn number_cable(&mut self, client_addresses: usize) -> Result<Cable> {
        if !(1..=MOST_CLIENT_ADDRESSES).contains(&client_addresses) {
            return Err(Error::setup(
                format!("{client_addresses} client addresses are impossible"),
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
        Ok(Cable { number, server_address, client_addresses })
    }

    fn lay_cable(
        &mut self,
        queues: usize,
        server: End,
        client: End,
        client_addresses: usize,
    ) -> Result<Cable> {
        let cable = self.number_cable(client_addresses)?;
        let (server_device, client_device) = (cable.server_device(), cable.client_device());
        let entered = self.enter_client()?;
        let queues = queues.clamp(1, MOST_QUEUES) as u32;
        create_pair(&client_device, &server_device, &self.server, queues)
            .context("create a veth pair", SUPPORT)?;
        if client == End::Kernel {
            set_addresses(&client_device, &cable.client_addresses, NETMASK)?;
        }
        switch_on(&client_device)?;
        drop(entered);
        let _entered = Entered::new(&self.server)?;
        if server == End::Kernel {
            set_addresses(&server_device, &[cable.server_address], NETMASK)?;
        }
        switch_on(&server_device)?;
        Ok(cable)
    }

    /// What the path is, for people.
    pub(crate) fn describe() -> &'static str {
        "veth pairs between two namespaces, the kernel's default offloads; a receiver's part of \
         the kernel runs in the time of the sender, so that only the CPU time of both sides \
         together says what a transaction costs"
    }

    /// The addresses of the kernel's clients on the cable to a server.
    pub(crate) fn sources(&self, server: IpAddr) -> Vec<IpAddr> {
        let IpAddr::V4(server) = server else { return Vec::new() };
        let clients = clients_of(server, self.shared.client_addresses.len());
        clients.into_iter().map(IpAddr::from).collect()
    }
}

/// The addresses after the server's.
fn clients_of(server: Ipv4Addr, count: usize) -> Vec<Ipv4Addr> {
    (1..=count as u32).map(|host| Ipv4Addr::from_bits(server.to_bits() + host)).collect()
}

/// Removes a device of the calling thread's namespace, and what it is joined with.
fn remove(device: &str) -> std::io::Result<()> {
    let mut request = Request::new(libc::RTM_DELLINK, 0);
    request.named_interface();
    request.text(libc::IFLA_IFNAME, device);
    request.send()
}

/// Makes a pair whose near end is in the calling thread's namespace.
fn create_pair(near: &str, far: &str, namespace: &OwnedFd, queues: u32) -> std::io::Result<()> {
    let queues = queues.to_ne_bytes();
    let mut request = Request::new(libc::RTM_NEWLINK, libc::NLM_F_CREATE | libc::NLM_F_EXCL);
    request.named_interface();
    request.text(libc::IFLA_IFNAME, near);
    request.attribute(libc::IFLA_NUM_TX_QUEUES, &queues);
    request.attribute(libc::IFLA_NUM_RX_QUEUES, &queues);
    let information = request.begin(libc::IFLA_LINKINFO);
    request.text(libc::IFLA_INFO_KIND, "veth");
    let data = request.begin(libc::IFLA_INFO_DATA);
    let peer = request.begin(VETH_INFO_PEER);
    request.named_interface();
    request.text(libc::IFLA_IFNAME, far);
    request.attribute(libc::IFLA_NET_NS_FD, &namespace.as_raw_fd().to_ne_bytes());
    request.attribute(libc::IFLA_NUM_TX_QUEUES, &queues);
    request.attribute(libc::IFLA_NUM_RX_QUEUES, &queues);
    for nest in [peer, data, information] {
        request.end(nest);
    }
    request.send()
}

#[cfg(test)]
#[path = "veth_tests.rs"]
mod tests;

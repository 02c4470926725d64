//! Creates the network path between clients and servers, and starts a server at its far end.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use crate::client::ClientKind;
use crate::error::{Error, Result};
use crate::network::conditions::Conditions;
use crate::network::namespace;
use crate::network::veth::{End, Veth, VethPair};
use crate::network::{Entered, Network, Options, PathKind};
use crate::server::process::Launch;
use crate::server::running::{Running, Subject};
use crate::stack::{Kind, Site};
use crate::sys::affinity::allowed_cpus;
use crate::sys::signals::Signals;

/// The network path of all packets. Dropping it removes its namespaces and devices.
pub(crate) enum Path {
    /// The loopback device.
    Loopback,
    /// Namespaces with a relay in between.
    Relay(Network),
    /// Namespaces with veth pairs in between.
    Veth(Veth),
}

impl Path {
    /// Creates the path that was requested. Must be called before any thread is started.
    pub(crate) fn create(
        kind: PathKind,
        conditions: Option<&Conditions>,
        options: &Options,
    ) -> Result<Path> {
        match (kind, conditions) {
            (PathKind::Loopback, None) => Ok(Path::Loopback),
            (PathKind::Loopback, Some(conditions)) => {
                Network::create(conditions, options).map(Path::Relay)
            }
            (PathKind::Veth, None) => {
                Veth::create(allowed_cpus()?.len(), options.client_addresses).map(Path::Veth)
            }
            (PathKind::Veth, Some(_)) => {
                Err(Error::setup("veth pairs have no delay, loss or rate", "choose one of both"))
            }
        }
    }

    /// Makes a congestion control without pacing the default for external programs, on both sides;
    /// false if that is not permitted. On the plain loopback the calling thread moves into a
    /// network namespace for that: call this before any thread or server is started.
    pub(crate) fn stop_pacing(&self) -> Result<bool> {
        if !namespace::can_set_default_congestion() {
            return Ok(false);
        }
        match self {
            Path::Loopback => {
                if !namespace::isolate()? {
                    return Ok(false);
                }
                namespace::stop_pacing()?;
            }
            Path::Relay(network) => {
                stop_pacing_in(&network.server_namespace())?;
                stop_pacing_in(network.client_namespace())?;
            }
            Path::Veth(veth) => {
                stop_pacing_in(&veth.server_namespace())?;
                stop_pacing_in(&veth.client_namespace())?;
            }
        }
        Ok(true)
    }

    /// Moves the calling thread into the clients' namespace, if the path has one.
    pub(crate) fn enter_client(&self) -> Result<Option<Entered>> {
        match self {
            Path::Loopback => Ok(None),
            Path::Relay(network) => network.enter_client().map(Some),
            Path::Veth(veth) => veth.enter_client().map(Some),
        }
    }

    /// Returns the emulated network, if the path is a relay.
    pub(crate) fn network(&self) -> Option<&Network> {
        match self {
            Path::Relay(network) => Some(network),
            Path::Loopback | Path::Veth(_) => None,
        }
    }

    /// Addresses to which clients over the kernel's sockets can bind for a server at `server`, if
    /// they are not those of the loopback device.
    pub(crate) fn sources(&self, server: IpAddr) -> Option<Vec<IpAddr>> {
        match self {
            Path::Loopback => None,
            Path::Relay(network) => Some(network.client_addresses().to_vec()),
            Path::Veth(veth) => Some(veth.sources(server)),
        }
    }

    /// Returns the path's name in the rows of a result file, unless it is the plain loopback or a
    /// network that its conditions describe.
    pub(crate) fn label(&self) -> Option<&'static str> {
        matches!(self, Path::Veth(_)).then_some("veth")
    }

    /// Returns a line of text about the path, if it is a veth path.
    pub(crate) fn describe(&self) -> Option<String> {
        matches!(self, Path::Veth(_)).then(|| format!("path: {}", Veth::describe()))
    }

    /// Removes the veth pairs of servers that have ended. All servers must have ended.
    pub(crate) fn clear(&mut self) -> Result<()> {
        match self {
            Path::Loopback | Path::Relay(_) => Ok(()),
            Path::Veth(veth) => veth.remove_cables(),
        }
    }

    /// Starts a server at the far end for clients of the given kind. Also returns where the
    /// clients' stack runs, if they use user-level TCP.
    pub(crate) fn start(
        &mut self,
        subject: &Subject,
        client: ClientKind,
        launch: Launch,
        signals: &Signals,
    ) -> Result<(Running, Option<Site>)> {
        let start = |launch: &Launch| Running::start(subject, launch, signals);
        self.start_by(subject.stack(), client, launch, start)
    }

    /// Starts a server, with this user-level TCP if it has one, by a function that gets `launch`
    /// with the address, the namespace and the device; otherwise like `start`.
    pub(crate) fn start_by(
        &mut self,
        stack: Option<Kind>,
        client: ClientKind,
        mut launch: Launch,
        start: impl FnOnce(&Launch) -> Result<Running>,
    ) -> Result<(Running, Option<Site>)> {
        let veth = match self {
            Path::Loopback => return Ok((start(&launch)?, None)),
            Path::Relay(network) => {
                launch.address = network.server_address();
                launch.namespace = Some(network.server_namespace());
                return Ok((start(&launch)?, None));
            }
            Path::Veth(veth) => veth,
        };
        if stack.is_some_and(Kind::makes_its_device) {
            return start_with_its_device(veth, launch, start).map(|server| (server, None));
        }
        let veth_pair = if stack.is_none() && client == ClientKind::Kernel {
            veth.shared().clone()
        } else {
            let end = |has_stack| if has_stack { End::Stack } else { End::Kernel };
            let ends = (end(stack.is_some()), end(client == ClientKind::Mtcp));
            veth.add_cable(launch.cpus.len(), ends.0, ends.1)?
        };
        launch.address = veth_pair.server_address.into();
        launch.namespace = Some(veth.server_namespace());
        launch.interface = stack.map(|_| veth_pair.server_device());
        let server = start(&launch)?;
        let site = (client == ClientKind::Mtcp).then(|| client_site(&veth_pair));
        Ok((server, site))
    }
}

/// Fails if the path has no device for the user-level TCP of `label` or its clients.
pub(crate) fn check_device(path: PathKind, label: &str) -> Result<()> {
    if path == PathKind::Veth {
        return Ok(());
    }
    Err(Error::setup(
        format!("`{label}` uses user-level TCP, which needs a device of its own"),
        "add --path veth",
    ))
}

fn stop_pacing_in(namespace: &OwnedFd) -> Result<()> {
    let _entered = Entered::new(namespace)?;
    namespace::stop_pacing()
}

/// Starts a server that creates its own device. The device's other end is the clients' kernel, so
/// the server runs in the clients' namespace.
fn start_with_its_device(
    veth: &mut Veth,
    mut launch: Launch,
    start: impl FnOnce(&Launch) -> Result<Running>,
) -> Result<Running> {
    let veth_pair = veth.reserve()?;
    let device = veth_pair.server_device();
    launch.address = veth_pair.server_address.into();
    launch.namespace = Some(veth.client_namespace());
    launch.interface = Some(device.clone());
    let server = start(&launch)?;
    veth.furnish_client(&veth_pair, &device)?;
    Ok(server)
}

fn client_site(veth_pair: &VethPair) -> Site {
    Site { interface: veth_pair.client_device(), address: veth_pair.client_addresses[0].into() }
}

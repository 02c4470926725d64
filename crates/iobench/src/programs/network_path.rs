//! Creates the network path of a program's connections.

use crate::apps::environment;
use crate::error::Result;
use crate::network::PathKind;
use crate::network::veth::{End, Veth};
use crate::programs::Variant;
use crate::programs::fable::Fable;
use crate::programs::link::{Joined, Link};
use crate::programs::mtcp::{Mode, MtcpRun};
use crate::sys::affinity::allowed_cpus;

/// MegaPipe's own commands that variants need; each is looked for when it is first needed.
pub(crate) struct Tools {
    fable: Option<Fable>,
    mtcp: Option<MtcpRun>,
    mode: Mode,
}

impl Tools {
    pub(crate) fn new(mode: Mode) -> Tools {
        Tools { fable: None, mtcp: None, mode }
    }

    /// Finds what the variants of programs over this path need.
    pub(crate) fn check(&mut self, path: PathKind) -> Result<()> {
        match path {
            PathKind::Loopback => self.fable().map(|_| ()),
            PathKind::Veth => self.mtcp().map(|_| ()),
        }
    }

    fn fable(&mut self) -> Result<Fable> {
        let found = self.fable.take().map_or_else(Fable::find, Ok)?;
        Ok(self.fable.insert(found).clone())
    }

    fn mtcp(&mut self) -> Result<MtcpRun> {
        let found = self.mtcp.take().map_or_else(|| MtcpRun::find(self.mode), Ok)?;
        Ok(self.mtcp.insert(found).clone())
    }
}

/// The network path that all servers of a program share. Dropping it removes it; the servers must
/// have ended.
pub(crate) enum NetworkPath {
    Loopback(Fable),
    Veth(Box<Veth>, MtcpRun),
}

impl NetworkPath {
    pub(crate) fn create(path: PathKind, tools: &mut Tools) -> Result<NetworkPath> {
        if path == PathKind::Loopback {
            return Ok(NetworkPath::Loopback(tools.fable()?));
        }
        let mtcp = tools.mtcp()?;
        // One address is enough: the server closes first, so the clients' ports do not stay in
        // TIME_WAIT.
        let veth = Veth::create(allowed_cpus()?.len(), 1)?;
        environment::configure_veth(&veth)?;
        Ok(NetworkPath::Veth(Box::new(veth), mtcp))
    }

    /// Creates the connection of one server and its clients.
    pub(crate) fn link(&mut self, variant: Variant) -> Result<Link> {
        let (veth, mtcp) = match self {
            NetworkPath::Loopback(fable) => {
                return Ok(match variant {
                    Variant::Fable => Link::Fable(fable.clone()),
                    _ => Link::Plain,
                });
            }
            NetworkPath::Veth(veth, mtcp) => (veth, mtcp),
        };
        let [server, client] = variant.stacks();
        let end = |has_stack| if has_stack { End::Stack } else { End::Kernel };
        let veth_pair = match (server, client) {
            (false, false) => veth.shared().clone(),
            // A stack on one CPU has one queue.
            _ => veth.add_cable(1, end(server), end(client))?,
        };
        Ok(Link::VethPair(Joined {
            mtcp: mtcp.clone(),
            has_stack: [server, client],
            server_namespace: veth.server_namespace(),
            client_namespace: veth.client_namespace(),
            veth_pair,
        }))
    }
}

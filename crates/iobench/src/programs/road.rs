//! The road that a program's connections take.

use crate::apps::place;
use crate::error::Result;
use crate::network::veth::{End, Veth};
use crate::network::{Entered, PathKind};
use crate::programs::Variant;
use crate::programs::fable::Fable;
use crate::programs::link::{Joined, Link};
use crate::programs::mtcp::{Mode, MtcpRun};
use crate::sys::affinity::allowed_cpus;

/// Our own commands that variants need, each looked for when it is needed first.
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

/// What all servers of a program share. Dropping it takes it away; the servers must have ended.
pub(crate) enum Road {
    Loopback(Fable),
    Veth(Box<Veth>, MtcpRun),
}

impl Road {
    pub(crate) fn lay(path: PathKind, tools: &mut Tools) -> Result<Road> {
        if path == PathKind::Loopback {
            return Ok(Road::Loopback(tools.fable()?));
        }
        let mtcp = tools.mtcp()?;
        // One address: it is the server that closes first, so clients' ports do not rest.
        let veth = Veth::create(allowed_cpus()?.len(), 1)?;
        for namespace in [veth.server_namespace(), veth.client_namespace()] {
            let _entered = Entered::new(&namespace)?;
            place::settle()?;
        }
        Ok(Road::Veth(Box::new(veth), mtcp))
    }

    /// Room for one server and its clients.
    pub(crate) fn link(&mut self, variant: Variant) -> Result<Link> {
        let (veth, mtcp) = match self {
            Road::Loopback(fable) => {
                return Ok(match variant {
                    Variant::Fable => Link::Fable(fable.clone()),
                    _ => Link::Plain,
                });
            }
            Road::Veth(veth, mtcp) => (veth, mtcp),
        };
        let [server, client] = variant.stacks();
        let end = |has_stack| if has_stack { End::Stack } else { End::Kernel };
        let cable = match (server, client) {
            (false, false) => veth.shared().clone(),
            // A stack on one CPU has one queue.
            _ => veth.add_cable(1, end(server), end(client))?,
        };
        Ok(Link::Cable(Joined {
            mtcp: mtcp.clone(),
            has_stack: [server, client],
            server_namespace: veth.server_namespace(),
            client_namespace: veth.client_namespace(),
            cable,
        }))
    }
}

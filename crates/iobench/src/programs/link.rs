//! Connects one server and its clients, and checks that the connections used the intended
//! transport.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::Result;
use crate::network::Entered;
use crate::network::veth::VethPair;
use crate::programs::fable::{Connections, Fable};
use crate::programs::mtcp::{self, Interface, MtcpRun};
use crate::server::process::Launch;

/// How one server and its clients are connected.
pub(crate) enum Link {
    /// Unmodified, over loopback or a UNIX socket.
    Plain,
    /// Both under `fable run`.
    Fable(Fable),
    /// Over a veth pair between two namespaces.
    VethPair(Joined),
}

/// A connection by a veth pair.
pub(crate) struct Joined {
    pub(crate) mtcp: MtcpRun,
    /// Whether the server and the client run on user-level TCP.
    pub(crate) has_stack: [bool; 2],
    pub(crate) server_namespace: Arc<OwnedFd>,
    pub(crate) client_namespace: Arc<OwnedFd>,
    pub(crate) veth_pair: VethPair,
}

impl Joined {
    fn server(&self) -> Option<Interface> {
        let device = self.veth_pair.server_device();
        let address = self.veth_pair.server_address.into();
        self.has_stack[0].then_some(Interface { device, address, cores: 1 })
    }

    fn client(&self) -> Option<Interface> {
        let device = self.veth_pair.client_device();
        let address = self.veth_pair.client_addresses[0].into();
        self.has_stack[1].then_some(Interface { device, address, cores: 1 })
    }
}

/// Counters read before a client starts and after it has ended.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    /// Connections that the server's stack accepted.
    accepted: Option<u64>,
    /// Connections that the kernel opened although the client's stack should have.
    kernel_opens: Option<u64>,
}

/// The transport that a client's connections used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Evidence {
    /// Connections that did not use the kernel's TCP, if they should not.
    pub(crate) connections: Option<u64>,
    /// Why the slice did not measure the intended transport.
    pub(crate) complaint: Option<String>,
}

impl Link {
    /// Sets the server's address and namespace in `launch`.
    pub(crate) fn place(&self, launch: &mut Launch) {
        if let Link::VethPair(joined) = self {
            launch.address = joined.veth_pair.server_address.into();
            launch.namespace = Some(Arc::clone(&joined.server_namespace));
        }
    }

    /// Returns whether the server has an address of its own, which the kernel cannot reach from its
    /// namespace.
    pub(crate) fn server_has_stack(&self) -> bool {
        matches!(self, Link::VethPair(joined) if joined.has_stack[0])
    }

    /// Sets the backend's address and namespace, at the clients' end, in `launch`.
    pub(crate) fn place_backend(&self, launch: &mut Launch) {
        if let Link::VethPair(joined) = self {
            launch.address = joined.veth_pair.client_addresses[0].into();
            launch.namespace = Some(Arc::clone(&joined.client_namespace));
        }
    }

    /// Writes the settings of the server's stack, if it has one, into the server's own directory.
    pub(crate) fn server_settings(&self, directory: &Path) -> Result<Option<PathBuf>> {
        let Link::VethPair(joined) = self else { return Ok(None) };
        let statistics = mtcp::statistics(directory);
        let write = |home: Interface| mtcp::write_settings(&home, Some(&statistics), directory);
        joined.server().map(write).transpose()
    }

    /// Returns the server's command with the launcher of this variant, on the stack with these
    /// settings if there are any.
    pub(crate) fn server_command(
        &self,
        words: Vec<String>,
        settings: Option<&Path>,
        directory: &Path,
    ) -> Vec<String> {
        match (self, settings) {
            (Link::Fable(fable), _) => fable.wrap(words, &directory.join("server-statistics")),
            (Link::VethPair(joined), Some(settings)) => joined.mtcp.wrap(words, settings),
            _ => words,
        }
    }

    /// Returns the command of one of its clients with the launcher of this variant.
    pub(crate) fn client_command(
        &self,
        words: Vec<String>,
        directory: &Path,
    ) -> Result<Vec<String>> {
        match self {
            Link::Plain => Ok(words),
            Link::Fable(fable) => {
                let statistics = client_statistics(directory);
                // Removes the statistics of the client before.
                let _ = fs::remove_file(&statistics);
                Ok(fable.wrap(words, &statistics))
            }
            Link::VethPair(joined) => match joined.client() {
                None => Ok(words),
                Some(home) => {
                    let settings = mtcp::write_settings(&home, None, directory)?;
                    Ok(joined.mtcp.wrap(words, &settings))
                }
            },
        }
    }

    /// Moves the calling thread to the clients' namespace, if it differs.
    pub(crate) fn enter_client(&self) -> Result<Option<Entered>> {
        match self {
            Link::Plain | Link::Fable(_) => Ok(None),
            Link::VethPair(joined) => Entered::new(&joined.client_namespace).map(Some),
        }
    }

    /// Reads the counters; called before a client starts and after its end. The error says why they
    /// are unknown.
    pub(crate) fn count(&self, directory: &Path) -> Result<Counts, String> {
        let Link::VethPair(joined) = self else { return Ok(Counts::default()) };
        let _entered = self.enter_client().map_err(|error| error.to_string())?;
        let [server, client] = joined.has_stack;
        let accepted = || mtcp::accepted(&mtcp::statistics(directory));
        Ok(Counts {
            accepted: server.then(accepted).transpose()?,
            kernel_opens: client.then(mtcp::kernel_opens).transpose()?,
        })
    }

    /// Judges a client that has ended and should have made at least `wanted` connections.
    pub(crate) fn judge(
        &self,
        before: &Counts,
        after: &Counts,
        wanted: u64,
        directory: &Path,
    ) -> Evidence {
        if let Link::Fable(_) = self {
            let text = fs::read_to_string(client_statistics(directory)).unwrap_or_default();
            let connections = Connections::parse(&text);
            let complaint = connections.complaint(wanted);
            return Evidence { connections: Some(connections.upgraded), complaint };
        }
        judge_stacks(before, after, wanted)
    }
}

fn judge_stacks(before: &Counts, after: &Counts, wanted: u64) -> Evidence {
    let since = |count: fn(&Counts) -> Option<u64>| {
        count(before).zip(count(after)).map(|(before, after)| after.saturating_sub(before))
    };
    let accepted = since(|counts| counts.accepted);
    let kernel_opens = since(|counts| counts.kernel_opens).unwrap_or(0);
    let complaint = match accepted {
        Some(accepted) if accepted < wanted => {
            Some(format!("only {accepted} of {wanted} connections came to the server's stack"))
        }
        _ if kernel_opens > 0 => {
            Some(format!("{kernel_opens} connections of the client were the kernel's"))
        }
        _ => None,
    };
    Evidence { connections: accepted, complaint }
}

/// File for the statistics of a client under `fable run`.
fn client_statistics(directory: &Path) -> PathBuf {
    directory.join("client-statistics")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_must_go_through_the_stacks() {
        let counts = |accepted, kernel_opens| Counts { accepted, kernel_opens };
        let judge = |before, after| judge_stacks(&before, &after, 5);
        let good = judge(counts(Some(10), Some(1)), counts(Some(15), Some(1)));
        assert_eq!(good, Evidence { connections: Some(5), complaint: None });
        let few = judge(counts(Some(10), None), counts(Some(14), None));
        assert!(few.complaint.unwrap().contains("only 4 of 5"));
        let kernel = judge(counts(Some(10), Some(1)), counts(Some(15), Some(6)));
        assert!(kernel.complaint.unwrap().contains("5 connections of the client"));
        assert_eq!(judge(counts(None, None), counts(None, None)), Evidence::default());
    }
}

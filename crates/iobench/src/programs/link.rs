//! How one server and its clients are joined, and whether the connections went that way.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::Result;
use crate::network::Entered;
use crate::network::veth::Cable;
use crate::programs::fable::{Connections, Fable};
use crate::programs::mtcp::{self, Interface, MtcpRun};
use crate::server::process::Launch;

/// How one server and its clients are joined.
pub(crate) enum Link {
    /// As the programs are, over loopback or a UNIX socket.
    Plain,
    /// Both under `fable run`.
    Fable(Fable),
    /// Over a cable between two namespaces.
    Cable(Joined),
}

/// By a cable.
pub(crate) struct Joined {
    pub(crate) mtcp: MtcpRun,
    /// Whether the server and the client run on stacks of their own.
    pub(crate) has_stack: [bool; 2],
    pub(crate) server_namespace: Arc<OwnedFd>,
    pub(crate) client_namespace: Arc<OwnedFd>,
    pub(crate) cable: Cable,
}

impl Joined {
    fn server(&self) -> Option<Interface> {
        let (device, address) = (self.cable.server_device(), self.cable.server_address);
        self.has_stack[0].then_some(Interface { device, address })
    }

    fn client(&self) -> Option<Interface> {
        let (device, address) = (self.cable.client_device(), self.cable.client_addresses[0]);
        self.has_stack[1].then_some(Interface { device, address })
    }
}

/// What is counted from the beginning of a client to its end.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    /// Connections that the server's stack accepted.
    accepted: Option<u64>,
    /// Connections that the kernel opened where the client's stack should.
    kernel_opens: Option<u64>,
}

/// What became of a client's connections.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Evidence {
    /// They left the kernel's TCP, where they should.
    pub(crate) connections: Option<u64>,
    /// Why the slice did not measure what it should.
    pub(crate) complaint: Option<String>,
}

impl Link {
    /// Puts a server at its end.
    pub(crate) fn place(&self, launch: &mut Launch) {
        if let Link::Cable(joined) = self {
            launch.address = joined.cable.server_address.into();
            launch.namespace = Some(Arc::clone(&joined.server_namespace));
        }
    }

    /// Whether the server has an address to itself, where the kernel cannot reach it.
    pub(crate) fn server_has_stack(&self) -> bool {
        matches!(self, Link::Cable(joined) if joined.has_stack[0])
    }

    /// Puts what the server asks for itself at the clients' end.
    pub(crate) fn place_backend(&self, launch: &mut Launch) {
        if let Link::Cable(joined) = self {
            launch.address = joined.cable.client_addresses[0].into();
            launch.namespace = Some(Arc::clone(&joined.client_namespace));
        }
    }

    /// Writes the settings of the server's stack, if it has one, into the server's own directory.
    pub(crate) fn server_settings(&self, directory: &Path) -> Result<Option<PathBuf>> {
        let Link::Cable(joined) = self else { return Ok(None) };
        let statistics = stack_statistics(directory);
        let write = |home: Interface| mtcp::write_settings(&home, Some(&statistics), directory);
        joined.server().map(write).transpose()
    }

    /// The server's command as it runs here, on the stack with these settings if there are any.
    pub(crate) fn server_command(
        &self,
        words: Vec<String>,
        settings: Option<&Path>,
        directory: &Path,
    ) -> Vec<String> {
        match (self, settings) {
            (Link::Fable(fable), _) => fable.wrap(words, &directory.join("server-statistics")),
            (Link::Cable(joined), Some(settings)) => joined.mtcp.wrap(words, settings),
            _ => words,
        }
    }

    /// The command of one of its clients as it runs here.
    pub(crate) fn client_command(
        &self,
        words: Vec<String>,
        directory: &Path,
    ) -> Result<Vec<String>> {
        match self {
            Link::Plain => Ok(words),
            Link::Fable(fable) => {
                let statistics = client_statistics(directory);
                // Those of the client before.
                let _ = fs::remove_file(&statistics);
                Ok(fable.wrap(words, &statistics))
            }
            Link::Cable(joined) => match joined.client() {
                None => Ok(words),
                Some(home) => {
                    let settings = mtcp::write_settings(&home, None, directory)?;
                    Ok(joined.mtcp.wrap(words, &settings))
                }
            },
        }
    }

    /// Moves the calling thread to where clients are started, if that is somewhere else.
    pub(crate) fn enter_client(&self) -> Result<Option<Entered>> {
        match self {
            Link::Plain | Link::Fable(_) => Ok(None),
            Link::Cable(joined) => Entered::new(&joined.client_namespace).map(Some),
        }
    }

    /// Before a client is started, and after its end; or why that cannot be told.
    pub(crate) fn count(&self, directory: &Path) -> Result<Counts, String> {
        let Link::Cable(joined) = self else { return Ok(Counts::default()) };
        let _entered = self.enter_client().map_err(|error| error.to_string())?;
        let [server, client] = joined.has_stack;
        let accepted = || mtcp::accepted(&stack_statistics(directory));
        Ok(Counts {
            accepted: server.then(accepted).transpose()?,
            kernel_opens: client.then(mtcp::kernel_opens).transpose()?,
        })
    }

    /// Judges a client that has ended and should have had at least `wanted` connections.
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

/// Where a client under `fable run` says what it did.
fn client_statistics(directory: &Path) -> PathBuf {
    directory.join("client-statistics")
}

/// Where a server's stack can be asked, with its own directory.
pub(crate) fn stack_statistics(directory: &Path) -> PathBuf {
    directory.join("stat")
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

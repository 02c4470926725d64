//! The preload libraries, and how a program is started under one of them.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::target_dir;

/// A preload library with its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// `fable run`: connections of one host through shared memory.
    Fable,
    /// `mtcp run`: connections through a TCP stack in the program.
    Mtcp,
}

/// Which ends of a connection run under the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    Neither,
    Both,
    Server,
    Client,
}

/// The settings of a stack on a TAP device of the namespace, whose other end is the kernel.
const MTCP_SETTINGS: &str = "\
[device]
kind = \"tap\"
interface = \"mtcp0\"
[address]
list = [\"10.10.0.2/24\"]
[[route]]
to = \"0.0.0.0/0\"
via = \"10.10.0.1\"
";

/// The shell's words that give the kernel its end of that device, as soon as the program that owns
/// it has made it, and beforehand for those that do not wait.
const MTCP_NETWORK: &str = "ip tuntap add mtcp0 mode tap && \
     ip address add 10.10.0.1/24 dev mtcp0 && ip link set mtcp0 up";

/// A library that was built, and its command.
#[derive(Debug)]
pub(crate) struct Launcher {
    pub(crate) way: Way,
    command: PathBuf,
}

impl Ends {
    pub(crate) fn server(self) -> bool {
        matches!(self, Ends::Both | Ends::Server)
    }

    pub(crate) fn client(self) -> bool {
        matches!(self, Ends::Both | Ends::Client)
    }

    /// The word in the name of a case.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Ends::Neither => "plain",
            Ends::Both => "both",
            Ends::Server => "server",
            Ends::Client => "client",
        }
    }
}

impl Way {
    /// The command's and the list's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Way::Fable => "fable",
            Way::Mtcp => "mtcp",
        }
    }

    /// Command, library and the packages that have them.
    fn products(self) -> [&'static str; 3] {
        match self {
            Way::Fable => ["fable", "fabled", "fable-preload"],
            Way::Mtcp => ["mtcp", "mtcp", "mtcp-preload"],
        }
    }

    /// Which ends may run under the library. Two stacks in one namespace would need two networks.
    pub(crate) fn placements(self) -> &'static [Ends] {
        match self {
            Way::Fable => &[Ends::Both, Ends::Server, Ends::Client],
            Way::Mtcp => &[Ends::Server, Ends::Client],
        }
    }

    /// Whether connections with both ends under the library are counted as upgraded.
    pub(crate) fn counts_upgrades(self) -> bool {
        self == Way::Fable
    }

    /// What is run in a new network namespace before anything else.
    pub(crate) fn network(self) -> &'static str {
        match self {
            Way::Fable => "true",
            Way::Mtcp => MTCP_NETWORK,
        }
    }

    /// Where a server listens, and its clients find it.
    pub(crate) fn address(self, ends: Ends) -> &'static str {
        match (self, ends) {
            (Way::Mtcp, Ends::Server) => "10.10.0.2",
            (Way::Mtcp, Ends::Client) => "10.10.0.1",
            _ => "127.0.0.1",
        }
    }

    /// The shell's words that change what Python's suites find as "localhost", where both ends of
    /// most of their connections are: a stack leaves loopback to the kernel. The kernel has the
    /// stack's address, too, for UDP, which a stack does not carry.
    pub(crate) fn localhost(self, ends: Ends) -> &'static str {
        match (self, ends) {
            (Way::Fable, _) => "true",
            (Way::Mtcp, Ends::Neither) => {
                "echo 10.10.0.1 localhost > hosts && mount --bind hosts /etc/hosts"
            }
            (Way::Mtcp, _) => {
                "ip address add 10.10.0.2/32 dev lo && \
                 echo 10.10.0.2 localhost > hosts && mount --bind hosts /etc/hosts"
            }
        }
    }

    /// Builds command and library, in release: time-outs of other people's tests are meant for
    /// programs that are.
    pub(crate) fn build(self) -> io::Result<Launcher> {
        let [command, package, library] = self.products();
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        build.args(["build", "--quiet", "--release", "--locked", "--package", package]);
        build.args(["--package", library, "--target-dir"]).arg(target_dir());
        let output = build.current_dir(crate::root()).output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(io::Error::other(format!("cannot build {command}:\n{said}")));
        }
        Ok(Launcher { way: self, command: target_dir().join("release").join(command) })
    }
}

impl Launcher {
    /// The words before a program that shall run under the library; what they need is put into
    /// `directory`, where the statistics are written, too.
    pub(crate) fn words(&self, directory: &Path) -> io::Result<Vec<String>> {
        let command = self.command.display();
        let words = match self.way {
            Way::Fable => {
                let statistics = Launcher::statistics(directory);
                format!("{command} run --statistics={}", statistics.display())
            }
            Way::Mtcp => {
                let settings = directory.join("mtcp.toml");
                fs::write(&settings, MTCP_SETTINGS)?;
                format!("{command} run --config {}", settings.display())
            }
        };
        Ok(words.split(' ').map(String::from).collect())
    }

    fn statistics(directory: &Path) -> PathBuf {
        directory.join("statistics")
    }

    /// How many ends of connections the processes of this directory had upgraded.
    pub(crate) fn upgraded(directory: &Path) -> u64 {
        let text = fs::read_to_string(Launcher::statistics(directory)).unwrap_or_default();
        sum(&text, "connected") + sum(&text, "accepted")
    }
}

/// The sum of one count over all processes.
fn sum(statistics: &str, name: &str) -> u64 {
    let words: Vec<&str> = statistics.split_whitespace().collect();
    let pairs = words.windows(2).filter(|pair| pair[0] == name);
    pairs.filter_map(|pair| pair[1].parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_upgraded_ends_of_all_processes_are_counted() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(Launcher::upgraded(directory.path()), 0);
        let lines = "fable: process 3: connected 33 accepted 34 sleeps 839\n\
                     fable: process 4: not_taken 2\nfable: process 5: accepted 1 doorbells 7\n";
        fs::write(Launcher::statistics(directory.path()), lines).unwrap();
        assert_eq!(Launcher::upgraded(directory.path()), 68);
    }
}

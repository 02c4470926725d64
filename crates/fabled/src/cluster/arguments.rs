//! The part of the daemon's command line that is about other hosts.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use super::{Authority, Member, Options, StartError};
use crate::cluster_link::{Cluster, Standalone};

/// Without `--etcd`, the daemon knows no other hosts.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterArguments {
    /// Where etcd is, for example http://10.0.0.1:2379; several are tried in turn. It must only be
    /// open to the hosts of the cluster
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    pub etcd: Vec<String>,

    /// Hosts see the names of their own zone only
    #[arg(long, value_name = "NAME", default_value = "default", requires = "etcd")]
    pub zone: String,

    /// Where processes of other hosts connect
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "[::]:7412", requires = "etcd")]
    pub listen: SocketAddr,

    /// Where other hosts are told to connect, in this order [default: all addresses of this host]
    #[arg(long, value_name = "ADDRESS:PORT", value_delimiter = ',', requires = "etcd")]
    pub advertise: Vec<SocketAddr>,

    /// For how long the others believe in this host when it is silent, 2 to 3600 s
    #[arg(long, value_name = "SECONDS", default_value_t = 5, requires = "etcd")]
    pub lease_s: u32,

    /// Keeps the key of the authority that signs this host's certificates [default: in memory, and
    /// new with each start]
    #[arg(long, value_name = "DIRECTORY")]
    pub state_directory: Option<PathBuf>,
}

impl ClusterArguments {
    /// Joins the cluster, or stands alone.
    ///
    /// # Errors
    /// [`StartError`] for what cannot get better by itself.
    pub fn start(&self, host: String) -> Result<Box<dyn Cluster>, StartError> {
        if self.etcd.is_empty() {
            let authority = Authority::open(&host, self.state_directory.as_deref())?;
            return Ok(Box::new(Standalone::new(host, authority)));
        }
        let options = Options {
            zone: self.zone.clone(),
            host,
            etcd: self.etcd.clone(),
            lease_ttl_s: self.lease_s,
            listen: self.listen,
            advertise: self.advertise.clone(),
            state_directory: self.state_directory.clone(),
        };
        Ok(Box::new(Member::start(&options)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use fable::protocol::{FlowId, Role};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        cluster: ClusterArguments,
    }

    fn parse(words: &str) -> Result<ClusterArguments, clap::Error> {
        let line = Line::try_parse_from(format!("fabled {words}").split_whitespace());
        line.map(|line| line.cluster)
    }

    #[test]
    fn a_host_alone_has_keys_for_its_own_flows() {
        let mut cluster = parse("").unwrap().start("a".to_owned()).unwrap();
        assert!(!cluster.has_others());
        let keys = cluster.keys(FlowId(1), Role::Leader, "a").unwrap();
        assert_eq!(keys.authorities[..], keys.chain[1..]);
        assert!(cluster.keys(FlowId(1), Role::Leader, "b").is_err());
    }

    #[test]
    fn what_cannot_get_better_by_itself_is_an_error() {
        let start = |words: &str| match parse(words).unwrap().start("a".to_owned()) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("it starts"),
        };
        assert!(start("--etcd https://etcd:1").contains("speaks no TLS"));
        assert!(start("--etcd http://etcd:1 --lease-s 1").contains("give 2 to 3600"));
        assert!(start("--etcd http://etcd:1 --zone a/b").contains("no name for a zone"));
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let words = format!("--etcd http://etcd:1 --listen {address}");
        assert!(start(&words).contains("choose another with --listen"));
        assert!(parse("--zone x").is_err(), "a zone is nothing without etcd");
    }
}

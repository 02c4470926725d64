//! The server to load: one that runs already, or one of iobench's on a CPU of its own.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::cli::LoadArgs;
use crate::engine::placement::Placement;
use crate::engine::sampler::ClientSide;
use crate::error::{Context, Error, Result};
use crate::exchange::Service;
use crate::server::process::Launch;
use crate::server::running::{Running, Subject};
use crate::sys::affinity::allowed_cpus;
use crate::sys::signals::Signals;
use crate::sys::socket::connect_remedy;

/// The server to load, and the CPUs of the load.
pub(crate) struct Target {
    /// The name of iobench's server, or the address of another.
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
    pub(crate) client: ClientSide,
    /// The CPUs of iobench's server.
    pub(crate) server_cpus: Vec<usize>,
    /// iobench's own server, which runs as long as it is loaded.
    pub(crate) server: Option<Running>,
}

impl Target {
    /// Starts the server, or checks that a running one accepts connections.
    pub(crate) fn reach(arguments: &LoadArgs, signals: &Signals) -> Result<Target> {
        if let Some(address) = arguments.connect {
            TcpStream::connect_timeout(&address, Duration::from_secs(5)).or_else(|error| {
                let usual = "start a server there, for instance `iobench serve --server epoll`";
                let remedy = connect_remedy(&error, usual);
                Err(error).context(format!("connect to {address}"), remedy)
            })?;
            let cpus = arguments.measure.client_cpus.clone().map_or_else(allowed_cpus, Ok)?;
            // A server on this machine may run on every CPU that is not reserved for the client.
            let owned = arguments.measure.client_cpus.is_some() || !address.ip().is_loopback();
            let client = ClientSide { cpus, owned, roaming: false };
            let (name, server_cpus) = (address.to_string(), Vec::new());
            return Ok(Target { name, address, client, server_cpus, server: None });
        }
        let (launch, placement) = own_launch(arguments)?;
        let subject = Subject::parse(&launch.name)?;
        let server = Running::start(&subject, &launch, signals)?;
        let address = server.address();
        let Placement { server_cpus, client_cpus } = placement;
        let client = ClientSide { cpus: client_cpus, owned: true, roaming: false };
        Ok(Target { name: launch.name, address, client, server_cpus, server: Some(server) })
    }
}

/// Returns how to start the server named by `--server`: with the placement that `compare` would
/// choose.
fn own_launch(arguments: &LoadArgs) -> Result<(Launch, Placement)> {
    let Some(name) = &arguments.server else {
        return Err(Error::setup("no server was named to load", "name --connect or --server"));
    };
    let cores = arguments.measure.server_cpus.as_ref().map_or(1, Vec::len);
    let placement = Placement::choose(cores, &allowed_cpus()?, &arguments.measure.cpus())?;
    let server = crate::server::find(name)?;
    server.check_connections(arguments.connections)?;
    let name = server.name();
    let echo = Launch::echo(name, &placement.server_cpus);
    let launch = Launch { service: Service::for_exchange(arguments.exchange()), ..echo };
    Ok((launch, placement))
}

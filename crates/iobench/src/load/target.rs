//! What is loaded: a server that runs already, or one of ours on a CPU of its own.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::cli::LoadArgs;
use crate::compare::rounds::service_for;
use crate::disturbance::ClientSide;
use crate::engine::placement::Placement;
use crate::error::{Context, Error, Result};
use crate::exchange::Exchange;
use crate::server::process::Launch;
use crate::server::running::{Running, Subject};
use crate::sys::affinity::allowed_cpus;
use crate::sys::signals::Signals;

/// What is loaded, and from which CPUs.
pub(crate) struct Target {
    /// The name of ours, or the address of another.
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
    pub(crate) client: ClientSide,
    /// Where a server of ours runs.
    pub(crate) server_cpus: Vec<usize>,
    /// Ours lives as long as it is loaded.
    pub(crate) server: Option<Running>,
}

impl Target {
    /// Starts the server, or makes sure that there is one.
    pub(crate) fn reach(arguments: &LoadArgs, signals: &Signals) -> Result<Target> {
        if let Some(address) = arguments.connect {
            TcpStream::connect_timeout(&address, Duration::from_secs(5)).context(
                format!("connect to {address}"),
                "start a server there, for instance `iobench serve --server epoll`",
            )?;
            let cpus = arguments.measure.client_cpus.clone().map_or_else(allowed_cpus, Ok)?;
            // A server on this machine may run on any CPU that was not kept for the client.
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

/// How the server named by `--server` is started: where `compare` would start it.
pub(crate) fn own_launch(arguments: &LoadArgs) -> Result<(Launch, Placement)> {
    let Some(name) = &arguments.server else {
        return Err(Error::setup("there is nothing to load", "name --connect or --server"));
    };
    let cores = arguments.measure.server_cpus.as_ref().map_or(1, Vec::len);
    let placement = Placement::choose(cores, &allowed_cpus()?, &arguments.measure.cpus())?;
    let server = crate::server::find(name)?;
    server.check_connections(arguments.connections)?;
    let name = server.name();
    let echo = Launch::echo(name, &placement.server_cpus);
    let launch = Launch { service: service_for(exchange(arguments)), ..echo };
    Ok((launch, placement))
}

/// The sizes that were asked for.
pub(crate) fn exchange(arguments: &LoadArgs) -> Exchange {
    match (arguments.request_bytes, arguments.response_bytes) {
        (Some(request_bytes), Some(response_bytes)) => Exchange { request_bytes, response_bytes },
        _ => Exchange::echo(arguments.message_bytes),
    }
}

//! megapipe-rt with its `http::serve`: a runtime with a core on each CPU of the calling thread.
//! Each core has an accept queue of its own.

use std::net::TcpListener;

use megapipe::{Config, DriverChoice};
use megapipe_rt::{Runtime, http};

use super::app::app;
use crate::error::{Context, Error, Result};
use crate::on_megapipe_rt::Port;
use crate::workers::Ready;

const REMEDY: &str = "run `iobench doctor`, which names what this machine lacks";

/// Serves forever over the stacks that the file named by MTCP_CONFIG describes, one for each core.
pub(super) fn serve_over_mtcp(listener: TcpListener, cores: usize, ready: Ready) -> Result<()> {
    const REMEDY: &str = "see docs/mtcp.toml for the settings; AF_XDP needs root";
    mtcp::driver::install_from_environment()
        .map_err(|error| Error::Setup { cause: error.to_string(), remedy: REMEDY })?;
    serve(listener, cores, DriverChoice::Installed(mtcp::driver::NAME), ready)
}

/// Serves forever.
pub(super) fn serve(
    listener: TcpListener,
    cores: usize,
    driver: DriverChoice,
    ready: Ready,
) -> Result<()> {
    let config = Config { driver, ..Config::default() };
    let runtime = Runtime::builder().cores(cores).channel_config(config).build();
    let (app, port) = (app(), Port::new(listener, cores, ready));
    let served = runtime.context("start megapipe-rt", REMEDY)?.run(move || {
        let (app, port) = (app.clone(), port.clone());
        async move { http::serve(port.listen()?, app).await }
    });
    served.context("serve", REMEDY)
}

//! `iobench apps`: compares real servers as distributed with the same servers on the channel, under
//! loads in their own protocols (sections 5.2 and 5.3 of the report).
//!
//! `compare` has the measuring and the statistics; this module has the programs, their settings,
//! and their clients.

mod app_cell;
mod cache;
mod campaign;
pub(crate) mod environment;
pub(crate) mod files;
mod memcached;
mod nginx;
mod redis;
mod summary;

use crate::apps::campaign::Campaign;
use crate::cli::apps::{AppCommand, AppsArgs};
use crate::client::ClientGroup;
use crate::client::protocol::requests::Requests;
use crate::client::slices::Slicing;
use crate::engine::placement::Placement;
use crate::error::{Error, Result};
use crate::exchange::Exchange;
use crate::server::running::Running;
use crate::sys::signals::Signals;

/// A program in several variants.
pub(crate) trait App {
    fn name(&self) -> &'static str;
    /// Returns the names of the variants; at least one.
    fn labels(&self) -> Vec<String>;
    /// Returns the name of the load, without its requests per connection.
    fn load(&self) -> String;
    /// Returns the settings needed to repeat the measurement, as text.
    fn settings(&self) -> String;
    /// Bytes of a request and of an answer, on average.
    fn exchange(&self) -> Exchange;
    /// Starts a variant with a thread or process on each CPU, and waits until it can serve.
    fn start(&self, variant: usize, cpus: &[usize], signals: &Signals) -> Result<Running>;
    /// Starts clients that make this many requests per connection.
    fn clients(
        &self,
        placement: &Placement,
        requests: &Requests,
        slicing: Slicing,
    ) -> Result<ClientGroup>;
}

/// Runs the comparison and prints it; true if every row is valid.
pub(crate) fn run(arguments: &AppsArgs) -> Result<bool> {
    // Before any thread is started, because threads inherit the mask and the network.
    let signals = Signals::block();
    match &arguments.app {
        AppCommand::Nginx(arguments) => {
            if arguments.wrk {
                return Err(Error::setup(
                    "apps has no --wrk any more",
                    "load servers with wrk by `iobench http --wrk`",
                ));
            }
            let quiet = environment::isolate()?;
            let app = nginx::Nginx::prepare(arguments)?;
            let own = arguments.mix.requests();
            let wanted = app.requests(arguments);
            let baseline = app.baseline(&arguments.baseline)?;
            Campaign::new(&app, &arguments.shape, baseline, &signals, quiet)
                .run(arguments.workers.as_deref(), wanted.unwrap_or_else(|| vec![own]))
        }
        AppCommand::Memcached(arguments) => {
            let quiet = environment::isolate()?;
            let app = memcached::Memcached::prepare(arguments)?;
            let requests = app.requests(arguments);
            Campaign::new(&app, &arguments.shape, 0, &signals, quiet)
                .run(arguments.threads.as_deref(), requests)
        }
        AppCommand::Redis(arguments) => {
            let quiet = environment::isolate()?;
            let app = redis::Redis::prepare(arguments)?;
            let requests = app.requests(arguments);
            // redis executes all commands in one thread.
            Campaign::new(&app, &arguments.shape, 0, &signals, quiet).run(Some(&[1]), requests)
        }
    }
}

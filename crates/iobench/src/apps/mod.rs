//! `iobench apps`: real servers as they are distributed against the same ones on the channel, under
//! loads in their own protocols (section 5.2 and 5.3 of the report).
//!
//! What is measured, and how pairs of slots become ratios, is `compare`'s; here are the programs,
//! their settings, and the clients that speak to them.

mod campaign;
pub(crate) mod files;
mod memcached;
pub(crate) mod mix;
mod nginx;
pub(crate) mod place;
mod summary;
pub(crate) mod wrk;

use crate::apps::campaign::Campaign;
use crate::cli::apps::{AppCommand, AppsArgs};
use crate::client::ClientGroup;
use crate::client::protocol::requests::Requests;
use crate::client::slices::Slicing;
use crate::engine::placement::Placement;
use crate::error::Result;
use crate::exchange::Exchange;
use crate::server::running::Running;
use crate::sys::signals::Signals;

/// A program in several variants.
pub(crate) trait App {
    fn name(&self) -> &'static str;
    /// What the variants are called; at least one.
    fn labels(&self) -> Vec<String>;
    /// What the load is called beside its requests per connection.
    fn load(&self) -> String;
    /// All that a reader has to know to repeat it, for people.
    fn settings(&self) -> String;
    /// Bytes of a request and of an answer, on average.
    fn exchange(&self) -> Exchange;
    /// Starts a variant with a thread or process on each CPU, ready to be loaded.
    fn start(&self, variant: usize, cpus: &[usize], signals: &Signals) -> Result<Running>;
    /// Starts clients that make so many requests per connection.
    fn clients(
        &self,
        placement: &Placement,
        requests: &Requests,
        slicing: Slicing,
    ) -> Result<ClientGroup>;
    /// The path that a foreign client asks for, if there is one to load it with.
    fn foreign_path(&self) -> Option<String>;
}

/// Runs the comparison and prints it; true if every row is valid.
pub(crate) fn run(arguments: &AppsArgs) -> Result<bool> {
    // Before any thread is started, because threads inherit the mask and the network.
    let signals = Signals::block();
    match &arguments.app {
        AppCommand::Nginx(arguments) => {
            let quiet = place::isolate()?;
            let app = nginx::Nginx::prepare(arguments)?;
            let own = arguments.mix.requests();
            let wanted = app.requests(arguments);
            let baseline = app.baseline(&arguments.baseline)?;
            Campaign::new(&app, &arguments.shape, baseline, &signals, quiet)
                .run(arguments.workers.as_deref(), wanted.unwrap_or_else(|| vec![own]))
        }
        AppCommand::Memcached(arguments) => {
            let quiet = place::isolate()?;
            let app = memcached::Memcached::prepare(arguments)?;
            let requests = app.requests(arguments);
            Campaign::new(&app, &arguments.shape, 0, &signals, quiet)
                .run(arguments.threads.as_deref(), requests)
        }
    }
}

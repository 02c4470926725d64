//! What `mtcp run` says through the environment.

use mtcp::config::Mode;
use mtcp::{Config, config::ENVIRONMENT};
use std::sync::OnceLock;

static CONFIG: OnceLock<Option<Config>> = OnceLock::new();

/// Reads the configuration, before the program's own code runs.
pub(crate) fn start() {
    crate::report::start();
    CONFIG.get_or_init(|| {
        std::env::var_os(ENVIRONMENT)?;
        match Config::from_environment() {
            Ok(config) => Some(for_programs(config)),
            Err(error) => {
                crate::report::complain(format_args!("{error}; the program uses the kernel's TCP"));
                None
            }
        }
    });
}

/// One stack for the whole program, whatever its threads are, on a thread of its own unless that is
/// not wanted.
fn for_programs(mut config: Config) -> Config {
    let complete = std::env::var_os("MTCP_RUN_COMPLETE").is_some_and(|value| value == "1");
    config.engine.mode = if complete { Mode::Complete } else { Mode::Paired };
    config.engine.cores = 1;
    config
}

/// The settings; without them all sockets stay the kernel's.
pub(crate) fn config() -> Option<&'static Config> {
    CONFIG.get().and_then(Option::as_ref)
}

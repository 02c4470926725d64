//! Reads the settings that `mtcp run` puts into the environment.

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

/// Adapts the settings for programs: one stack for the whole process, whatever its threads are,
/// with its own engine thread unless `--complete` is given, restricted unless `--no-seccomp` is.
fn for_programs(mut config: Config) -> Config {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| value == "1");
    let complete = is_set("MTCP_RUN_COMPLETE");
    config.engine.mode = if complete { Mode::Complete } else { Mode::Paired };
    config.engine.cores = 1;
    config.engine.seccomp = !is_set("MTCP_RUN_NO_SECCOMP");
    config
}

/// Returns the settings; without them all sockets stay the kernel's.
pub(crate) fn config() -> Option<&'static Config> {
    CONFIG.get().and_then(Option::as_ref)
}

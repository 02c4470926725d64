//! nginx with the channel's event module: builds `ngx_megapipe_module.so` for the installed nginx,
//! and starts a server with it.

use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use super::{App, sanitizer};
use crate::setup;

/// The file that the build makes.
const MODULE: &str = "ngx_megapipe_module.so";

const USAGE: &str = "usage: cargo xtask nginx [--build] [--port PORT] [--config FILE] | --sanitize";

/// The parsed command line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Arguments {
    build_only: bool,
    port: Option<u16>,
    config: Option<PathBuf>,
}

/// `cargo xtask nginx`: sets the machine up, builds the module, and serves in the foreground.
pub(crate) fn run(root: &Path, words: &[&str]) -> Result<(), String> {
    if let ["--sanitize"] = words {
        setup::run_for(&[setup::NGINX, setup::NGINX_CLIENTS].concat())?;
        return sanitize(root);
    }
    let arguments = arguments(words)?;
    setup::run_for(setup::NGINX)?;
    let module = module(root)?;
    println!("nginx: {}", module.display());
    if arguments.build_only { Ok(()) } else { serve(&App::new(root, "nginx")?, &arguments) }
}

/// Builds the module; returns its path.
pub(crate) fn module(root: &Path) -> Result<PathBuf, String> {
    let app = App::new(root, "nginx")?;
    app.make(&["all"])?;
    Ok(app.build.join(MODULE))
}

/// Builds the module, and nginx of other releases with it.
pub(super) fn releases(root: &Path) -> Result<(), String> {
    App::new(root, "nginx")?.make(&["all", "releases"])
}

/// Builds nginx and the module under AddressSanitizer, and runs the tests of nginx; fails if they
/// fail or the sanitizer reports anything.
fn sanitize(root: &Path) -> Result<(), String> {
    let app = App::new(root, "nginx")?;
    app.make(&["sanitized"])?;
    let built = app.build.join("sanitized");
    sanitizer::run_tests(root, &sanitizer::reports_in(&app.build), "nginx", |tests| {
        tests.args(["--package", "systemtests-programs", "--test", "nginx"]);
        tests.env("MEGAPIPE_NGINX", built.join("nginx"));
        tests.env("MEGAPIPE_NGINX_MODULE", built.join(MODULE));
    })
}

fn arguments(words: &[&str]) -> Result<Arguments, String> {
    let mut arguments = Arguments::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value; {USAGE}"));
        match *word {
            "--build" => arguments.build_only = true,
            "--port" => {
                let port = value()?;
                let parsed = port
                    .parse()
                    .map_err(|_| format!("`{port}` is no port; use 0 to 65535; {USAGE}"))?;
                arguments.port = Some(parsed);
            }
            "--config" => arguments.config = Some(PathBuf::from(value()?)),
            other => return Err(format!("unknown argument `{other}`; {USAGE}")),
        }
    }
    Ok(arguments)
}

/// Executes the server in place of this process, so that it gets the terminal's signals.
fn serve(app: &App, arguments: &Arguments) -> Result<(), String> {
    let word = match (&arguments.config, arguments.port) {
        (Some(config), _) => {
            let config = config.canonicalize().map_err(|error| {
                format!("cannot read {}: {error}; name a readable file", config.display())
            })?;
            format!("CONFIG={}", config.display())
        }
        (None, Some(port)) => format!("PORT={port}"),
        (None, None) => {
            let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
            let free = free.map_err(|error| {
                format!("cannot find a free port: {error}; name one with --port")
            })?;
            format!("PORT={}", free.port())
        }
    };
    let error = app.command(&["serve", &word]).exec();
    Err(format!("cannot run make: {error}; install the package make"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_read() {
        assert_eq!(arguments(&[]), Ok(Arguments::default()));
        let wish_of = arguments(&["--build", "--port", "8080"]).unwrap();
        assert_eq!(wish_of, Arguments { build_only: true, port: Some(8080), config: None });
        assert!(arguments(&["--port"]).unwrap_err().contains("needs a value"));
        assert!(arguments(&["--port", "x"]).unwrap_err().contains("no port"));
        assert!(arguments(&["now"]).unwrap_err().contains("`now`"));
    }
}

//! `cargo xtask operations`: sets the machine up and runs the program of `crates/apptests` that
//! compares the stock and the adapted servers under the actions of operators and clients.

use std::path::Path;
use std::process::ExitCode;

use crate::cargo::cargo;
use crate::setup;

const USAGE: &str = "usage: cargo xtask operations [nginx|memcached] [--quick] \
     [--only PART-OF-A-NAME] [--json FILE]";

/// Runs the command. Its exit status is the program's: 1 if a cell of the table is worse than the
/// stock server's, and not by a documented limit.
pub(crate) fn run(root: &Path, words: &[&str]) -> Result<ExitCode, String> {
    setup::run_for(&needed(words)?)?;
    let mut command = cargo();
    command.args(["run", "--quiet", "--locked", "--package", "megapipe-apptests"]);
    command.arg("--manifest-path").arg(root.join("Cargo.toml"));
    command.args(["--bin", "operations", "--"]).args(words);
    command.env("PATH", setup::search_path());
    let status = command
        .status()
        .map_err(|error| format!("cannot run cargo: {error}; add cargo to the PATH"))?;
    match status.code() {
        Some(code) => Ok(ExitCode::from(u8::try_from(code).unwrap_or(1))),
        None => Err(format!("the scenarios ended with {status}")),
    }
}

/// Returns the packages that the scenarios of these servers need.
fn needed(words: &[&str]) -> Result<Vec<&'static str>, String> {
    let (mut nginx, mut memcached) = (false, false);
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        match *word {
            "nginx" => nginx = true,
            "memcached" => memcached = true,
            "--quick" => {}
            "--only" | "--json" if rest.next().is_some() => {}
            other => return Err(format!("unknown argument `{other}`; {USAGE}")),
        }
    }
    let neither = !nginx && !memcached;
    let mut packages = Vec::new();
    if nginx || neither {
        packages.extend([setup::NGINX, setup::NGINX_CLIENTS].concat());
    }
    if memcached || neither {
        packages.extend(setup::MEMCACHED);
    }
    Ok(packages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_packages_of_the_chosen_server_are_needed() {
        assert!(needed(&["memcached", "--quick"]).is_ok_and(|names| !names.contains(&"nginx")));
        assert!(needed(&["nginx"]).is_ok_and(|names| !names.contains(&"libevent-dev")));
        let all = needed(&["--only", "nginx", "--json", "memcached"]).unwrap();
        assert!(all.contains(&"nginx") && all.contains(&"libevent-dev"), "{all:?}");
        assert!(needed(&["--json"]).unwrap_err().contains("unknown argument `--json`; usage"));
    }
}

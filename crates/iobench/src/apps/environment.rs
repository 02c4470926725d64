//! The environment of the programs under test: network namespace, scratch directory, binaries.

use std::env;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::error::{Context, Error, Result};
use crate::network::veth::Veth;
use crate::network::{Entered, namespace};
use crate::output;
use crate::sys::socket::default_congestion_control;

const APPS_VARIABLE: &str = "MEGAPIPE_APPS";
const LEAST_ROOM: usize = 4_096;
/// Whether ports in TIME_WAIT may be used again before their minute is over. If the file cannot be
/// written, the kernel allows it on loopback only.
const REUSE: &str = "/proc/sys/net/ipv4/tcp_tw_reuse";
/// How long a port of a connection that a client has closed stays unused, in milliseconds. The
/// clients close tens of thousands of connections per second; with the default of one second no
/// port would be free.
const PORT_REST_MS: &str = "10";

/// Moves the process into a network namespace of its own, if that is permitted, so that external
/// programs get a congestion control without pacing and no settings of the machine change. Returns
/// a description of the network for the report.
pub(crate) fn isolate() -> Result<String> {
    if !namespace::isolate()? {
        output::note(
            "no permission for a network namespace: the servers use the system's congestion \
             control, and ports that wait may run out; run as root for figures to be compared",
        );
        return Ok("the machine's own loopback device".to_owned());
    }
    configure_namespace()?;
    let default = default_congestion_control();
    Ok(format!("loopback in a network namespace of its own, congestion control {default}"))
}

/// Configures both network namespaces of a veth path, see [`configure_namespace`].
pub(crate) fn configure_veth(veth: &Veth) -> Result<()> {
    for namespace in [veth.server_namespace(), veth.client_namespace()] {
        let _entered = Entered::new(&namespace)?;
        configure_namespace()?;
    }
    Ok(())
}

/// Configures the calling thread's network namespace, which must be one that this process created:
/// a congestion control without pacing, and a short TIME_WAIT.
fn configure_namespace() -> Result<()> {
    namespace::stop_pacing()?;
    // Kernels before 6.14 do not have this file; there a port stays unused for a second.
    let _ = fs::write("/proc/sys/net/ipv4/tcp_tw_reuse_delay", PORT_REST_MS);
    let _ = fs::write(REUSE, "1");
    Ok(())
}

/// Returns a file that `cargo xtask` has built, from `chosen` or from its default directory.
pub(crate) fn built(chosen: Option<&Path>, usual: &str, remedy: &str) -> Result<PathBuf> {
    let path = match (chosen, env::var_os(APPS_VARIABLE)) {
        (Some(chosen), _) => chosen.to_owned(),
        (None, Some(directory)) => Path::new(&directory).join(usual),
        (None, None) => beside_us()?.join(usual),
    };
    // Programs are started with another working directory.
    fs::canonicalize(&path).ok().filter(|path| path.is_file()).ok_or_else(|| {
        Error::setup(format!("there is no file {}", path.display()), remedy.to_owned())
    })
}

/// Returns `apps` in the target directory; this program is one level deeper.
fn beside_us() -> Result<PathBuf> {
    let program = env::current_exe().context("find this program's file", "mount /proc")?;
    let target = program.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
    Ok(target.join("apps"))
}

/// Makes a directory of temporary files, see [`scratch_in`].
pub(crate) fn scratch(purpose: &str) -> Result<TempDir> {
    scratch_in(&env::temp_dir(), purpose).context(
        format!("make a directory in {}", env::temp_dir().display()),
        "free some space, or set TMPDIR to a directory that can be written",
    )
}

/// Makes a directory that is removed with everything in it when dropped. Its name ends in random
/// letters, so that no other user can take it before. Others can read it: servers run as users of
/// their own.
pub(crate) fn scratch_in(parent: &Path, purpose: &str) -> io::Result<TempDir> {
    tempfile::Builder::new()
        .prefix(&format!("iobench-{purpose}-{}-", std::process::id()))
        .permissions(Permissions::from_mode(0o755))
        .tempdir_in(parent)
}

/// Returns the number of connections that a server must be able to hold. A server with little CPU
/// time closes connections late, while the clients open new ones.
pub(crate) fn room_for(connections: usize) -> usize {
    (8 * connections).max(LEAST_ROOM)
}

/// Returns whether the process runs as root. Some programs need an option to run as root.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_not_built_come_with_the_command_that_builds_them() {
        let absent = Path::new("/no/such/module.so");
        let error = built(Some(absent), "x", "run `cargo xtask x`").unwrap_err().to_string();
        assert!(error.contains("/no/such/module.so") && error.contains("cargo xtask x"), "{error}");
        let program = env::current_exe().unwrap();
        assert_eq!(built(Some(&program), "x", "").unwrap(), fs::canonicalize(program).unwrap());
    }
}

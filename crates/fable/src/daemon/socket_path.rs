//! Computes the path of the daemon's socket.

use std::path::{Path, PathBuf};

/// The daemon's socket, relative to a directory for sockets.
const BELOW: &str = "fable/fabled.sock";

/// Returns the path of the name daemon's socket, for the daemon and for its clients.
///
/// It is `$FABLE_SOCKET` if that is set. Otherwise it is `/run/fable/fabled.sock` for root, and for
/// every user if that file exists or `$XDG_RUNTIME_DIR` is not set; else
/// `$XDG_RUNTIME_DIR/fable/fabled.sock`, for a daemon of the user's own. A program with more rights
/// than its user does not read these variables, see [`sys::environment::variable`].
pub fn socket_path() -> PathBuf {
    // SAFETY: the call has no arguments and cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    choose(|name| sys::environment::variable(name).map(PathBuf::from), is_root, Path::exists)
}

fn choose(
    variable: impl Fn(&str) -> Option<PathBuf>,
    is_root: bool,
    exists: impl Fn(&Path) -> bool,
) -> PathBuf {
    let set = |name| variable(name).filter(|value| !value.as_os_str().is_empty());
    let system = Path::new("/run").join(BELOW);
    match (set("FABLE_SOCKET"), set("XDG_RUNTIME_DIR")) {
        (Some(socket), _) => socket,
        (None, Some(runtime)) if !is_root && !exists(&system) => runtime.join(BELOW),
        _ => system,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(variables: &[(&str, &str)], is_root: bool, exists: bool) -> PathBuf {
        let variable = |name: &str| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| PathBuf::from(value))
        };
        choose(variable, is_root, |_| exists)
    }

    #[test]
    fn the_variable_wins_then_the_systems_socket_then_the_users() {
        let system = PathBuf::from("/run/fable/fabled.sock");
        let user = [("XDG_RUNTIME_DIR", "/run/user/7")];
        let both = [("FABLE_SOCKET", "/tmp/d.sock"), user[0]];
        assert_eq!(chosen(&both, true, true), PathBuf::from("/tmp/d.sock"));
        assert_eq!(chosen(&user, true, false), system);
        assert_eq!(chosen(&user, false, true), system);
        assert_eq!(chosen(&user, false, false), PathBuf::from("/run/user/7/fable/fabled.sock"));
        assert_eq!(chosen(&[("FABLE_SOCKET", "")], false, false), system);
    }
}

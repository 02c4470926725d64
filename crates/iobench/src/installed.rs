//! Finds programs of the distribution and their versions.

use std::env;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::error::{Context, Error, Result};

/// Directories with servers that may not be on the PATH of all users.
const MORE_DIRECTORIES: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];
/// Time-out of a request to a server.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// Returns the program's file.
pub(crate) fn find(program: &str, package: &str) -> Result<PathBuf> {
    find_in(&[], program, package)
}

/// Searches `first`, then the places of `find`.
pub(crate) fn find_in(first: &[PathBuf], program: &str, package: &str) -> Result<PathBuf> {
    search(first, program).ok_or_else(|| {
        Error::setup(
            format!("the program {program} is not installed"),
            format!("install the package {package}"),
        )
    })
}

/// Finds one of MegaPipe's own commands: in the directory of this program, else on the PATH.
pub(crate) fn find_own(command: &str, remedy: &'static str) -> Result<PathBuf> {
    let own = own_file()?;
    let beside: Vec<PathBuf> = own.parent().map(Path::to_owned).into_iter().collect();
    search(&beside, command).ok_or_else(|| {
        Error::setup(format!("`{command}` is neither beside iobench nor on the PATH"), remedy)
    })
}

fn own_file() -> Result<PathBuf> {
    env::current_exe().context("find this program's file", "mount /proc")
}

/// Finds one of MegaPipe's own commands `COMMAND run OPTIONS PROGRAM`, which preload a library.
/// Tries it with these options, because only the command knows where its library may be.
pub(crate) fn find_runner(
    command: &str,
    options: &[String],
    remedy: &'static str,
) -> Result<PathBuf> {
    let (own, program) = (own_file()?, find_own(command, remedy)?);
    let mut trial = Command::new(&program);
    // This program itself certainly exists.
    trial.arg("run").args(options).arg(&own).arg("--version").stdin(Stdio::null());
    let tried = trial.output().context(format!("start {}", program.display()), remedy)?;
    if !tried.status.success() {
        let complaint = String::from_utf8_lossy(&tried.stderr).trim().to_owned();
        let cause = format!("{} run does not work: {complaint}", program.display());
        return Err(Error::setup(cause, remedy));
    }
    Ok(program)
}

/// Searches `first`, the PATH, and the directories of servers.
pub(crate) fn search(first: &[PathBuf], program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let directories = first.iter().cloned().chain(env::split_paths(&path));
    directories
        .chain(MORE_DIRECTORIES.map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|file| file.is_file())
}

/// Returns the version that the program prints, on one line.
pub(crate) fn version(program: &Path, option: &str) -> String {
    let output = Command::new(program).arg(option).stdin(Stdio::null()).output();
    let text = output.map(|output| [output.stdout, output.stderr].concat()).unwrap_or_default();
    String::from_utf8_lossy(&text).lines().next().unwrap_or("unknown version").trim().to_owned()
}

/// Sends a server a text that ends with its request to close the connection, and returns the whole
/// answer; `None` if there is none.
pub(crate) fn ask(address: SocketAddr, request: &str) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&address, ASK_TIMEOUT).ok()?;
    stream.set_read_timeout(Some(ASK_TIMEOUT)).ok()?;
    stream.set_write_timeout(Some(ASK_TIMEOUT)).ok()?;
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// Returns the directories that match `PARENT/VERSION/CHILD`, the latest version first.
pub(crate) fn versions_below(parent: &str, child: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let mut found: Vec<(f64, PathBuf)> = entries
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join(child)))
        })
        .collect();
    found.sort_by(|one, other| other.0.total_cmp(&one.0));
    found.into_iter().map(|(_, directory)| directory).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_programs_come_with_their_package() {
        let error = find("no-such-server", "some-package").unwrap_err().to_string();
        assert!(error.contains("no-such-server") && error.contains("some-package"), "{error}");
        assert_eq!(search(&[PathBuf::from("/usr/bin")], "env").unwrap(), Path::new("/usr/bin/env"));
    }
}

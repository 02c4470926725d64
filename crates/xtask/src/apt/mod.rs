//! Runs apt with a configuration of its own, so that the system is not changed.

pub(crate) mod entries;

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::command::make_directory;

/// A file for apt's directory of sources: its name and its content.
pub(crate) type SourceFile = (String, String);

/// An apt with a private configuration.
pub(crate) struct Apt {
    options: Vec<OsString>,
}

impl Apt {
    /// Makes a configuration with these files as sources, and `directory` for all data of apt.
    pub(crate) fn new(directory: &Path, sources: Vec<SourceFile>) -> Result<Apt, String> {
        let parts = directory.join("sources");
        // Removes the entries of an earlier run, which may no longer be those of the machine.
        let _ = fs::remove_dir_all(&parts);
        for below in ["sources", "lists/partial", "cache/archives/partial"] {
            make_directory(&directory.join(below))?;
        }
        for (file, text) in sources {
            let path = parts.join(file);
            fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        let setting = |key: &str, value: &Path| {
            let mut option = OsString::from(format!("{key}="));
            option.push(value);
            [OsString::from("-o"), option]
        };
        let mut options: Vec<OsString> = [
            setting("Dir::Etc::SourceList", Path::new("/dev/null")),
            setting("Dir::Etc::SourceParts", &parts),
            setting("Dir::State::Lists", &directory.join("lists")),
            setting("Dir::Cache", &directory.join("cache")),
        ]
        .concat();
        // apt's sandbox user may not write below a home directory.
        options.extend(["-o".into(), "APT::Sandbox::User=root".into()]);
        // A mirror that fails once may still have the version.
        options.extend(["-o".into(), "Acquire::Retries=5".into()]);
        Ok(Apt { options })
    }

    /// Returns a command of apt with this configuration.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.args(&self.options).env("LC_ALL", "C").stdin(Stdio::null());
        command
    }
}

/// Returns the addresses from which the package comes, so that other archives are not contacted.
/// The result is empty if apt does not know, because its lists have been removed; that means all
/// addresses.
pub(crate) fn origins(name: &str) -> Vec<String> {
    let output = Command::new("apt-cache").args(["policy", name]).env("LC_ALL", "C").output();
    output.map_or_else(|_| Vec::new(), |output| addresses(&String::from_utf8_lossy(&output.stdout)))
}

/// Returns the second word of lines such as `500 http://archive/debian bookworm/main amd64
/// Packages`.
fn addresses(policy: &str) -> Vec<String> {
    let lines = policy.lines().filter(|line| line.trim_end().ends_with(" Packages"));
    lines.filter_map(|line| line.split_whitespace().nth(1)).map(String::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_origins_of_a_package_are_read() {
        let policy = "p:\n  Installed: 1\n *** 1 500\n        500 http://a x/main amd64 Packages\n";
        assert_eq!(addresses(policy), ["http://a"]);
    }
}

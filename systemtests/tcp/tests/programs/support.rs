//! Provides the network, the library, and processes that end with the test.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;
use testkit::Namespace;
pub(crate) use testkit::process::{
    Guard, TIME_LIMIT, await_port, preload_library, program, succeed, with_sanitizer,
};

/// The address of the stack that serves, on the interface `server`.
pub(crate) const SERVER: &str = "10.9.0.1";
/// The address of a client's stack, on the interface `client`.
pub(crate) const CLIENT: &str = "10.9.0.2";
/// The address of the client's kernel.
pub(crate) const KERNEL: &str = "10.9.0.3";

/// Two namespaces connected by a veth, and a directory for files of the programs.
pub(crate) struct Site {
    pub(crate) server: Namespace,
    pub(crate) client: Namespace,
    directory: TempDir,
}

impl Site {
    /// Creates a site with stacks on devices of this kind ("xdp", "packet").
    pub(crate) fn new(device: &str) -> Site {
        let (server, client) = (Namespace::new(), Namespace::new());
        server.join("server", &client, "client");
        client.ip(&format!("addr add {KERNEL}/24 dev client"));
        let directory = tempfile::tempdir().expect("a directory");
        let site = Site { server, client, directory };
        for (name, address) in [("server", SERVER), ("client", CLIENT)] {
            let text = format!(
                "[device]\nkind = \"{device}\"\ninterface = \"{name}\"\n\
                 [address]\nlist = [\"{address}/24\"]\n"
            );
            std::fs::write(site.path(&format!("{name}.toml")), text).expect("it is written");
        }
        site
    }

    /// The path of a file of this site.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The command `mtcp run OPTIONS SUBJECT` on the stack of one side; the caller adds the
    /// arguments.
    pub(crate) fn under_stack(&self, side: &str, options: &[&str], subject: &str) -> Command {
        let mut command = Command::new(program("mtcp"));
        with_sanitizer(&mut command).env("MTCP_PRELOAD", preload_library("mtcp-preload"));
        command.args(["run", "--config"]).arg(self.path(&format!("{side}.toml")));
        command.args(options).arg(subject);
        command.stdin(Stdio::null());
        command
    }

    /// The output of ip(8) for the server's interface, without the parts that differ each time.
    pub(crate) fn interface(&self) -> String {
        self.server.ip("-o link show server")
    }
}

/// Compiles a program of `tests/programs/c`.
pub(crate) fn compile(site: &Site, name: &str) -> PathBuf {
    let program = site.path(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/c/{name}.c"));
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(&program);
    assert!(compiler.arg(source).status().expect("cc runs").success(), "{compiler:?}");
    program
}

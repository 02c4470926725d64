//! Hosts as network namespaces, each with a host name of its own, connected by a bridge in another
//! namespace: the machine's network is not changed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use systemtests_bench::{is_alive, signal, started, wait};
use testkit::process::program;

/// Prefix of the names of all test namespaces. The process id and its start time follow, so that
/// those of a killed run can be distinguished from those of a running one.
const PREFIX: &str = "iobench-test";

/// Hosts `node0`, `node1` … at 10.77.0.1, 10.77.0.2 …; removed when dropped.
pub(crate) struct Hosts {
    prefix: String,
    names: Vec<String>,
    directory: tempfile::TempDir,
}

impl Hosts {
    pub(crate) fn start(count: usize) -> Hosts {
        remove_stale();
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let since = started(process).expect("we run");
        let directory = tempfile::tempdir().expect("a temporary directory");
        let names = (0..count).map(|node| format!("node{node}")).collect();
        // From here on, dropping removes everything, even after a panic.
        let prefix = format!("{PREFIX}-{process}-{since}-{number}-");
        let hosts = Hosts { prefix, names, directory };
        let bridge = hosts.namespace("bridge");
        ip(&["netns", "add", &bridge]);
        ip(&["-n", &bridge, "link", "add", "bridge", "type", "bridge"]);
        ip(&["-n", &bridge, "link", "set", "bridge", "up"]);
        for (number, name) in hosts.names.iter().enumerate() {
            hosts.join(&bridge, number, name);
        }
        hosts.write_agent();
        hosts
    }

    /// Creates one host and connects it to the bridge.
    fn join(&self, bridge: &str, number: usize, name: &str) {
        let (host, port) = (self.namespace(name), format!("port{number}"));
        let address = format!("10.77.0.{}/24", number + 1);
        ip(&["netns", "add", &host]);
        let veth = ["link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &host];
        ip(&[["-n", bridge].as_slice(), &veth].concat());
        ip(&["-n", bridge, "link", "set", &port, "master", "bridge", "up"]);
        ip(&["-n", &host, "address", "add", &address, "dev", "eth0"]);
        ip(&["-n", &host, "link", "set", "eth0", "up"]);
        ip(&["-n", &host, "link", "set", "lo", "up"]);
    }

    /// Returns the prefix of the names of its namespaces.
    pub(crate) fn prefix(&self) -> String {
        self.prefix.clone()
    }

    fn namespace(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Runs ip(8) for one host.
    pub(crate) fn ip(&self, node: usize, arguments: &[&str]) {
        let namespace = self.namespace(&self.names[node]);
        ip(&[["-n", &namespace].as_slice(), arguments].concat());
    }

    fn agent(&self) -> PathBuf {
        self.directory.path().join("agent")
    }

    /// Writes a replacement for ssh: `agent HOST WORDS...` runs the words in a shell on that host.
    fn write_agent(&self) {
        let script = format!(
            "#!/bin/sh\nhost=$1\nshift\nexec ip netns exec \"{}$host\" unshare --uts \\\n    sh -c \
             'hostname \"$0\" && eval \"$1\"' \"$host\" \"$*\"\n",
            self.prefix
        );
        fs::write(self.agent(), script).expect("our own directory");
        let executable = fs::Permissions::from_mode(0o700);
        fs::set_permissions(self.agent(), executable).expect("our own file");
    }

    /// Runs iobench on every host under mpirun, which itself runs on the first one.
    pub(crate) fn mpirun(&self, arguments: &[&str]) -> Output {
        let first = &self.names[0];
        let list = self.names.join(",");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(first), "unshare", "--uts", "sh", "-c"]);
        command.args(["hostname \"$0\" && exec mpirun \"$@\"", first]);
        // Each host has only one process, so there is nothing to bind; the namespaces share CPUs.
        command.args(["--allow-run-as-root", "-N", "1", "--bind-to", "none", "--host", &list]);
        command.args(["--mca", "plm", "rsh", "--mca", "plm_rsh_agent"]).arg(self.agent());
        command.args(["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]);
        command.args(["--mca", "btl_tcp_if_include", "eth0"]);
        command.args(["--mca", "oob_tcp_if_include", "eth0"]);
        command.arg(program("iobench")).args(arguments);
        command.env("TMPDIR", self.directory.path());
        let paths = ["stdout", "stderr"].map(|name| self.directory.path().join(name));
        let [stdout, stderr] =
            paths.each_ref().map(|path| fs::File::create(path).expect("our own directory"));
        let child = command.stdin(Stdio::null()).stdout(stdout).stderr(stderr).spawn();
        let mut child = child.expect("ip starts");
        wait(&mut child);
        let status = child.wait().expect("our own child");
        let [stdout, stderr] = paths.map(|path| fs::read(path).expect("our own file"));
        Output { status, stdout, stderr }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        remove(&self.prefix);
    }
}

/// Removes namespaces of killed runs.
fn remove_stale() {
    for namespace in namespaces() {
        let owner = namespace.strip_prefix(PREFIX).and_then(|rest| {
            let mut numbers = rest.strip_prefix('-')?.split('-');
            Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
        });
        if owner.is_some_and(|owner: (u32, u64)| !is_alive(owner)) {
            remove(&namespace);
        }
    }
}

/// Ends the processes in the namespaces whose names begin with `prefix`, and removes them.
fn remove(prefix: &str) {
    for namespace in namespaces().iter().filter(|name| name.starts_with(prefix)) {
        let processes = || {
            let output = Command::new("ip").args(["netns", "pids", namespace]).output();
            let text = output.map(|output| output.stdout).unwrap_or_default();
            let text = String::from_utf8_lossy(&text).into_owned();
            text.lines().filter_map(|line| line.parse().ok()).collect::<Vec<u32>>()
        };
        processes().into_iter().for_each(|process| signal(process, libc::SIGKILL));
        // No panic here: this runs when tests have already failed.
        let gone = (0..500).any(|_| {
            thread::sleep(Duration::from_millis(10));
            processes().is_empty()
        });
        if !gone {
            eprintln!("{namespace} still has processes: {:?}", processes());
        }
        let _ = Command::new("ip").args(["netns", "delete", namespace]).output();
    }
}

/// Returns the number of network namespaces whose names begin with `prefix`.
pub(crate) fn count(prefix: &str) -> usize {
    namespaces().iter().filter(|name| name.starts_with(prefix)).count()
}

/// Returns the names of all network namespaces.
fn namespaces() -> Vec<String> {
    let entries = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[track_caller]
pub(crate) fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output().expect("ip starts");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {}: {message}", arguments.join(" "));
}

//! Runs the distribution's nginx or another release, with the event module or unmodified.

use crate::http::Client;
use crate::port::Port;
use crate::process::Running;
use crate::{TIME_LIMIT, built, first_words, library};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use sys::capabilities::{CapabilitySet, retain};
use tempfile::TempDir;
use testkit::{eventually, is_root};

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The release, one of `apps/nginx/releases`; empty for the installed nginx.
    pub release: &'static str,
    /// Whether to use the event module, or else nginx's own epoll.
    pub module: bool,
    /// The number of worker processes.
    pub workers: u32,
    /// Further directives outside all blocks; they may have a `worker_rlimit_nofile`.
    pub main: String,
    /// Further directives of `events`; the default for `worker_connections` is 4,096.
    pub events: String,
    /// Further directives of `http`, servers too.
    pub http: String,
    /// Further directives of the one server.
    pub server: String,
    /// The limit on locked memory, in bytes, of processes that may not exceed it; none if it is 0.
    pub locked_bytes: u64,
    /// The soft and the hard limit on descriptors of the master; those of the test if it is `None`.
    pub descriptors: Option<(u64, u64)>,
    /// Features of io_uring that the server's processes lack, as rules of the library `hide-uring`;
    /// empty for none.
    pub hidden: String,
}

impl Setup {
    /// One worker with the module.
    pub fn module() -> Setup {
        let [main, events, http, server, hidden] = [const { String::new() }; 5];
        let (locked_bytes, descriptors) = (0, None);
        Setup {
            release: "",
            module: true,
            workers: 1,
            main,
            events,
            http,
            server,
            locked_bytes,
            descriptors,
            hidden,
        }
    }
}

/// A server that ends with the test. Its files are below `root()`.
#[derive(Debug)]
pub struct Nginx {
    running: Running,
    directory: TempDir,
    ports: [Port; 3],
}

/// Passes the sanitizer's options to a binary that replaces this one; nginx drops other variables.
const SANITIZER: &str = "env ASAN_OPTIONS;";

/// Environment variables with the paths of another build of nginx and of the module.
const PROGRAM: &str = "MEGAPIPE_NGINX";
const MODULE: &str = "MEGAPIPE_NGINX_MODULE";

/// Returns the module of a release, or of the installed nginx: `MEGAPIPE_NGINX_MODULE` if set.
///
/// # Errors
/// If it is not built.
pub fn built_module(release: &str) -> io::Result<PathBuf> {
    match std::env::var_os(MODULE) {
        Some(other) if release.is_empty() => Ok(other.into()),
        _ => built(Path::new("apps/nginx").join(release).join("ngx_megapipe_module.so")),
    }
}

/// Returns nginx, which `MEGAPIPE_NGINX` may name.
pub(crate) fn program(release: &str) -> io::Result<OsString> {
    if release.is_empty() {
        return Ok(std::env::var_os(PROGRAM).unwrap_or_else(|| "nginx".into()));
    }
    Ok(built(Path::new("apps/nginx").join(release).join("nginx"))?.into())
}

/// Returns the releases beside the installed one.
pub fn releases() -> impl Iterator<Item = &'static str> {
    first_words(include_str!("../../../apps/nginx/releases"))
}

impl Nginx {
    /// Starts a server and waits until it accepts connections. In the directives `{port}` is
    /// replaced by its port, `{port2}` and `{port3}` by further ones, and `{dir}` by its directory.
    pub fn start(setup: &Setup) -> io::Result<Nginx> {
        let directory = tempfile::tempdir()?;
        fs::create_dir(directory.path().join("html"))?;
        let ports = [Port::reserve()?, Port::reserve()?, Port::reserve()?];
        let numbers = ports.each_ref().map(Port::number);
        let port = numbers[0];
        let config = directory.path().join("nginx.conf");
        fs::write(&config, text(setup, directory.path(), numbers)?)?;
        let mut command = Command::new(program(setup.release)?);
        command.arg("-p").arg(directory.path()).arg("-c").arg(&config);
        command.arg("-e").arg(directory.path().join("error.log")).args(["-g", "daemon off;"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if !setup.hidden.is_empty() {
            command
                .env("LD_PRELOAD", library("libhide_uring.so")?)
                .env("HIDE_URING", &setup.hidden);
        }
        if setup.locked_bytes > 0 {
            limit_locked_memory(&mut command, setup.locked_bytes);
        }
        if let Some((soft, hard)) = setup.descriptors {
            limit_descriptors(&mut command, soft, hard);
        }
        let running = Running::start(&mut command)?;
        let mut nginx = Nginx { running, directory, ports };
        let mut up = false;
        let mut decided = || {
            up = TcpStream::connect(("127.0.0.1", port)).is_ok();
            up || !matches!(nginx.running.child().try_wait(), Ok(None))
        };
        if !eventually(TIME_LIMIT, &mut decided) || !up {
            return Err(io::Error::other(format!("nginx does not start:\n{}", nginx.log())));
        }
        let workers = setup.workers as usize;
        let alone = setup.main.contains("master_process off");
        // The master listens before its modules can refuse the configuration.
        let mut counted = || {
            alone
                || nginx.workers().len() == workers
                || !matches!(nginx.running.child().try_wait(), Ok(None))
        };
        let counts = eventually(TIME_LIMIT, &mut counted) && nginx.workers().len() == workers;
        if !alone && !counts {
            return Err(io::Error::other(format!("workers are missing:\n{}", nginx.log())));
        }
        // The master listens before a worker serves, and a test's counts must not still grow. The
        // server closes a client whose header does not arrive in time, so one request may not be
        // enough.
        let mut last = None;
        let served = || match Client::connect(port).and_then(|mut client| client.get("/who")) {
            Ok(_) => true,
            Err(error) => {
                last = Some(error);
                false
            }
        };
        if !eventually(TIME_LIMIT, served) {
            let what = format!("nobody is served: {last:?}\n{}", nginx.log());
            return Err(io::Error::other(what));
        }
        Ok(nginx)
    }

    /// Returns the master's process id.
    pub fn id(&self) -> u32 {
        self.running.id()
    }

    /// Returns the first port.
    pub fn port(&self) -> u16 {
        self.ports[0].number()
    }

    /// Returns all ports: the first one, and those of `{port2}` and `{port3}`.
    pub fn ports(&self) -> [u16; 3] {
        self.ports.each_ref().map(Port::number)
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Writes a file that the server serves.
    pub fn place(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let path = self.directory.path().join("html").join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(path, content)
    }

    /// Returns the error log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("error.log")).unwrap_or_default()
    }

    /// Returns the lines of the log that no run may write.
    pub fn complaints(&self) -> Vec<String> {
        let bad = ["[alert]", "[crit]", "[emerg]"];
        let is_bad = |line: &&str| bad.iter().any(|level| line.contains(level));
        self.log().lines().filter(is_bad).map(String::from).collect()
    }

    /// Returns the process ids of the workers; a cache has further processes.
    pub fn workers(&self) -> Vec<u32> {
        workers_of(self.running.id())
    }

    /// Checks a configuration as `nginx -t` does; returns what it prints, and whether it is good.
    pub fn test(&self, config: &Path) -> io::Result<(String, bool)> {
        let mut command = Command::new(program("")?);
        command.arg("-t").arg("-p").arg(self.directory()).arg("-c").arg(config);
        let output = command.stdin(Stdio::null()).output()?;
        Ok((String::from_utf8_lossy(&output.stderr).into_owned(), output.status.success()))
    }

    /// Returns the number of open descriptors of all workers.
    pub fn descriptors(&self) -> usize {
        let count = |id: &u32| fs::read_dir(format!("/proc/{id}/fd")).map_or(0, Iterator::count);
        self.workers().iter().map(count).sum()
    }

    /// Sends the master a signal.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        self.running.signal(signal)
    }

    /// Makes the master reload the configuration, and waits until only new workers are there.
    pub fn reload(&self) -> io::Result<()> {
        let before = self.workers();
        self.signal(libc::SIGHUP)?;
        let renewed = || {
            let now = self.workers();
            now.len() == before.len() && now.iter().all(|id| !before.contains(id))
        };
        if eventually(TIME_LIMIT, renewed) {
            return Ok(());
        }
        Err(io::Error::other(format!("old workers stay: {:?}\n{}", self.workers(), self.log())))
    }

    /// Waits until the server has ended.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.running.wait(TIME_LIMIT)
    }
}

/// Limits the locked memory of a command, and bars it from locking more.
fn limit_locked_memory(command: &mut Command, bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    let limited = move || {
        // SAFETY: the limit is valid for reads.
        if unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(retain(CapabilitySet::all().difference(CapabilitySet::IPC_LOCK))?)
    };
    // SAFETY: between fork(2) and execve(2), system calls and no allocation.
    unsafe { command.pre_exec(limited) };
}

fn limit_descriptors(command: &mut Command, soft: u64, hard: u64) {
    let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
    // SAFETY: the limit is valid for reads.
    let limited = move || match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: between fork(2) and execve(2), a system call and no allocation.
    unsafe { command.pre_exec(limited) };
}

/// Returns the process ids of the workers of a master.
pub fn workers_of(master: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{master}/task/{master}/children"));
    let children = children.unwrap_or_default();
    let title = |id: &u32| fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
    let is_worker = |id: &u32| title(id).starts_with(b"nginx: worker process");
    let ids = children.split_whitespace().filter_map(|word| word.parse().ok());
    ids.filter(is_worker).collect()
}

/// A location that returns the worker's process id, for tests of processes and of fall-backs.
const WHO: &str = "location = /who { return 200 \"$pid\"; }";

const CONNECTIONS: &str = "worker_connections 4096;";

fn text(setup: &Setup, directory: &Path, ports: [u16; 3]) -> io::Result<String> {
    let (load, method, socket) = if setup.module {
        let load = format!("load_module {};", built_module(setup.release)?.display());
        let socket = "location = /socket { return 200 \"$megapipe_driver $megapipe_socket\"; }";
        (load, "use megapipe;", socket)
    } else {
        (String::new(), "use epoll;", "")
    };
    let user = if is_root() { "user root;" } else { "" };
    let Setup { workers, main, events, http, server, .. } = setup;
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {name}_temp;\n"))
        .concat();
    let connections = if events.contains("worker_connections") { "" } else { CONNECTIONS };
    let limit = "worker_rlimit_nofile";
    let descriptors = if main.contains(limit) { "" } else { &format!("{limit} 8192;") };
    let config = format!(
        "{load}\n{user}\n{SANITIZER}\n{main}\nworker_processes {workers};\n{descriptors}\n\
         pid nginx.pid;\nerror_log error.log info;\n\
         events {{ {method} {connections} {events} }}\n\
         http {{\n{temporary} access_log off; sendfile on; tcp_nopush on;\n\
         default_type text/plain;\n\
         {http}\nserver {{\nlisten 127.0.0.1:{{port}} backlog=4096; root html;\n\
         {WHO} {socket}\n{server}\n}}\n\
         }}\n"
    );
    let config = ["{port}", "{port2}", "{port3}"]
        .iter()
        .zip(ports)
        .fold(config, |config, (name, port)| config.replace(name, &port.to_string()));
    Ok(config.replace("{dir}", &directory.to_string_lossy()))
}

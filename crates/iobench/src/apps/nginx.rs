//! nginx in its variants: configurations that differ only in the event module and the listener.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::apps::App;
use crate::apps::environment::{built, is_root, room_for, scratch};
use crate::apps::files::FileSet;
use crate::cli::apps::NginxArgs;
use crate::client::ClientGroup;
use crate::client::mix::Mix;
use crate::client::protocol::Protocol;
use crate::client::protocol::http::Http;
use crate::client::protocol::pattern::Pattern;
use crate::client::protocol::requests::Requests;
use crate::client::slices::Slicing;
use crate::client::sockets::Ending;
use crate::client::sockets::kernel::{KernelSockets, Options};
use crate::engine::placement::Placement;
use crate::error::{Context, Error, Result};
use crate::exchange::Exchange;
use crate::server::external::{ExternalProcess, Foreign};
use crate::server::process::Launch;
use crate::server::running::Running;
use crate::sys::clock::now_ns;
use crate::sys::process_tree;
use crate::sys::signals::Signals;

const USUAL_MODULE: &str = "nginx/ngx_megapipe_module.so";
const MODULE_REMEDY: &str = "build it with `cargo xtask nginx --build`, name it with --module, or \
                             leave it out with --module none";
/// Default requests per connection of the SPECweb-like mix: the shortest connections, the mix's own
/// number, and the longest.
const SPECWEB_REQUESTS: [u32; 3] = [1, 6, 0];
/// Longest time for the master process to start its workers.
const WORKERS_NS: u64 = 10_000_000_000;
/// nginx's default backlog; more concurrent connections need a longer one.
const USUAL_BACKLOG: usize = 511;

/// How a worker waits for events and gets its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    Epoll,
    EpollReuseport,
    Megapipe,
}

impl Variant {
    fn name(self) -> &'static str {
        match self {
            Variant::Epoll => "epoll",
            Variant::EpollReuseport => "epoll-reuseport",
            Variant::Megapipe => "megapipe",
        }
    }
}

/// Settings that are the same for all variants.
#[derive(Debug, Clone)]
struct Settings {
    sendfile: &'static str,
    nopush: &'static str,
    lwsockets: &'static str,
    open_file_cache: bool,
    connections: usize,
    root: PathBuf,
}

/// The variants of nginx, and their load.
pub(crate) struct Nginx {
    program: PathBuf,
    version: String,
    module: Option<PathBuf>,
    variants: Vec<Variant>,
    settings: Settings,
    mix: Mix,
    ending: Ending,
    seed: u64,
    files: FileSet,
    sizes: Arc<[u64]>,
    pattern: Arc<Pattern>,
    scratch: TempDir,
}

impl Nginx {
    pub(crate) fn prepare(arguments: &NginxArgs) -> Result<Nginx> {
        let version = version_of(&arguments.nginx)?;
        let (mut variants, mut module) = (vec![Variant::Epoll, Variant::EpollReuseport], None);
        if arguments.module.as_deref() != Some(Path::new("none")) {
            module = Some(built(arguments.module.as_deref(), USUAL_MODULE, MODULE_REMEDY)?);
            variants.push(Variant::Megapipe);
        }
        let pattern = Arc::new(Pattern::new());
        let files = FileSet::write(arguments.mix.sizes(), &pattern)?;
        let settings = Settings {
            sendfile: arguments.sendfile.word(),
            nopush: arguments.nopush.word(),
            lwsockets: arguments.lwsockets.word(),
            open_file_cache: arguments.open_file_cache,
            connections: arguments.shape.connections,
            root: files.root().to_owned(),
        };
        Ok(Nginx {
            program: arguments.nginx.clone(),
            version,
            module,
            variants,
            settings,
            mix: arguments.mix,
            ending: arguments.shape.ending,
            seed: arguments.shape.measure.seed.unwrap_or(1),
            sizes: files.sizes.clone().into(),
            files,
            pattern,
            scratch: scratch("nginx")?,
        })
    }

    /// Returns the requests per connection to measure; `None` if the mix determines them.
    pub(crate) fn requests(&self, arguments: &NginxArgs) -> Option<Vec<Requests>> {
        let counts = match (&arguments.requests, arguments.mix) {
            (Some(counts), _) => counts.clone(),
            (None, Mix::Specweb) if !arguments.shape.measure.quick => SPECWEB_REQUESTS.to_vec(),
            (None, _) => return None,
        };
        Some(counts.into_iter().map(Requests::Fixed).collect())
    }

    /// Returns the variant of that name.
    pub(crate) fn baseline(&self, name: &str) -> Result<usize> {
        let names: Vec<&str> = self.variants.iter().map(|variant| variant.name()).collect();
        names.iter().position(|known| *known == name).ok_or_else(|| {
            Error::setup(
                format!("the baseline `{name}` is not compared"),
                format!("choose one of {}", names.join(", ")),
            )
        })
    }

    fn configuration(&self, variant: Variant, port: u16, cpus: &[usize]) -> String {
        let module = self.module.as_deref().filter(|_| variant == Variant::Megapipe);
        render(variant, module, &self.settings, self.scratch.path(), port, cpus)
    }
}

impl App for Nginx {
    fn name(&self) -> &'static str {
        "nginx"
    }

    fn labels(&self) -> Vec<String> {
        self.variants.iter().map(|variant| variant.name().to_owned()).collect()
    }

    fn load(&self) -> String {
        self.mix.to_string()
    }

    fn settings(&self) -> String {
        let Settings { sendfile, nopush, lwsockets, open_file_cache, .. } = self.settings;
        let cache = if open_file_cache { "on" } else { "off" };
        let place = if self.files.in_memory { "memory" } else { "the disk's cache" };
        format!(
            "{}; sendfile {sendfile}, tcp_nopush {nopush}, open_file_cache {cache}, access_log \
             off; megapipe_lwsockets {lwsockets}\nmix {}: {} files from {place}, {:.0} bytes on \
             average, every byte checked",
            self.version,
            self.mix,
            self.sizes.len(),
            self.files.mean_bytes()
        )
    }

    fn exchange(&self) -> Exchange {
        let mut http = Http::new(
            Arc::clone(&self.sizes),
            Arc::clone(&self.pattern),
            Requests::Fixed(1),
            self.seed,
        );
        Exchange {
            request_bytes: http.render(0).len(),
            response_bytes: self.files.mean_bytes().round() as usize,
        }
    }

    fn start(&self, variant: usize, cpus: &[usize], signals: &Signals) -> Result<Running> {
        const REMEDY: &str = "free some space in the directory for temporary files";
        let variant = self.variants[variant];
        let name = variant.name();
        let file = self.scratch.path().join(format!("{name}-{}.conf", cpus.len()));
        // Its workers survive a master that is killed, so the master must be asked to end.
        let foreign = Foreign { name, orphan_signal: Signal::TERM };
        let mut process =
            ExternalProcess::start_command(&foreign, &Launch::echo(name, cpus), signals, |port| {
                fs::write(&file, self.configuration(variant, port, cpus))
                    .context(format!("write {}", file.display()), REMEDY)?;
                let [program, prefix, file] = [&self.program, self.scratch.path(), &file]
                    .map(|path: &Path| path.to_string_lossy().into_owned());
                let directives = "daemon off; master_process on;".to_owned();
                Ok(vec![program, "-p".into(), prefix, "-c".into(), file, "-g".into(), directives])
            })?;
        let deadline_ns = now_ns() + WORKERS_NS;
        loop {
            let workers = process_tree::children(process.id());
            if workers.len() == cpus.len() {
                let threads = workers.into_iter().map(|worker| worker as i32).collect();
                process.serves_in(threads, true);
                return Ok(Running::External(process));
            }
            if now_ns() > deadline_ns || process.ended().is_some() {
                return Err(Error::setup(
                    format!("nginx did not start its workers{}", process.describe_output()),
                    format!("see what `{} -t` says of a configuration", self.program.display()),
                ));
            }
            signals.sleep_ms(5)?;
        }
    }

    fn clients(
        &self,
        placement: &Placement,
        requests: &Requests,
        slicing: Slicing,
    ) -> Result<ClientGroup> {
        let (sizes, pattern) = (Arc::clone(&self.sizes), Arc::clone(&self.pattern));
        let (requests, seed) = (requests.clone(), self.seed);
        let (cpus, connections) = (&placement.client_cpus, self.settings.connections);
        let options = Options::for_short_requests(self.ending);
        let sockets = move |_| KernelSockets::new(options.clone());
        ClientGroup::start_speaking(cpus, connections, slicing, sockets, move |index| {
            let (sizes, pattern) = (Arc::clone(&sizes), Arc::clone(&pattern));
            Http::new(sizes, pattern, requests.clone(), seed + index as u64)
        })
    }
}

/// Returns the configuration file of a variant: that of the distribution as far as it matters for
/// files.
fn render(
    variant: Variant,
    module: Option<&Path>,
    settings: &Settings,
    directory: &Path,
    port: u16,
    cpus: &[usize],
) -> String {
    let name = format!("{}-{}", variant.name(), cpus.len());
    let (directory, root) = (directory.display(), settings.root.display());
    let load =
        module.map_or_else(String::new, |module| format!("load_module {};\n", module.display()));
    let user = if is_root() { "user root;\n" } else { "" };
    let method = match variant {
        Variant::Megapipe => format!("megapipe;\n    megapipe_lwsockets {}", settings.lwsockets),
        Variant::Epoll | Variant::EpollReuseport => "epoll".to_owned(),
    };
    let masks: Vec<String> = cpus.iter().map(|&cpu| format!("1{}", "0".repeat(cpu))).collect();
    let backlog = if settings.connections > USUAL_BACKLOG {
        format!(" backlog={}", settings.connections)
    } else {
        String::new()
    };
    let reuseport = if variant == Variant::EpollReuseport { " reuseport" } else { "" };
    let cache = if settings.open_file_cache {
        "    open_file_cache max=10000 inactive=1h;\n    open_file_cache_valid 1h;\n"
    } else {
        ""
    };
    let connections = room_for(settings.connections);
    format!(
        "{load}{user}worker_processes {workers};\nworker_cpu_affinity {masks};\n\
         worker_rlimit_nofile {files};\npid {directory}/{name}.pid;\n\
         lock_file {directory}/{name}.lock;\nerror_log stderr;\nevents {{\n    \
         use {method};\n    worker_connections {connections};\n}}\n\
         http {{\n    types {{ text/html html; }}\n    access_log off;\n    \
         sendfile {sendfile};\n    tcp_nopush {nopush};\n    keepalive_requests 1000000000;\n\
         {cache}    client_body_temp_path {directory}/body;\n    \
         proxy_temp_path {directory}/proxy;\n    \
         fastcgi_temp_path {directory}/fastcgi;\n    uwsgi_temp_path {directory}/uwsgi;\n    \
         scgi_temp_path {directory}/scgi;\n    server {{\n        \
         listen 127.0.0.1:{port}{backlog}{reuseport};\n        root {root};\n    }}\n}}\n",
        workers = cpus.len(),
        masks = masks.join(" "),
        files = 2 * connections,
        sendfile = settings.sendfile,
        nopush = settings.nopush,
    )
}

/// Returns the version that the program prints.
fn version_of(program: &Path) -> Result<String> {
    let output = std::process::Command::new(program).arg("-v").output().context(
        format!("start {}", program.display()),
        "install the package nginx (`cargo xtask setup`), or name the program with --nginx",
    )?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok(text.trim().rsplit(' ').next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings {
            sendfile: "on",
            nopush: "off",
            lwsockets: "on",
            open_file_cache: false,
            connections: 256,
            root: PathBuf::from("/files"),
        }
    }

    fn rendered(variant: Variant) -> String {
        let module = (variant == Variant::Megapipe).then_some(Path::new("/m.so"));
        render(variant, module, &settings(), Path::new("/scratch"), 8_000, &[0, 3])
    }

    #[test]
    fn variants_differ_in_their_events_and_listener_only() {
        let lines = |variant: Variant| -> Vec<String> {
            let same = |line: &str| {
                !["load_module", "use ", "megapipe_", "listen ", "pid ", "lock_file "]
                    .iter()
                    .any(|word| line.trim_start().starts_with(word))
            };
            rendered(variant).lines().filter(|line| same(line)).map(str::to_owned).collect()
        };
        assert_eq!(lines(Variant::Epoll), lines(Variant::Megapipe));
        assert_eq!(lines(Variant::Epoll), lines(Variant::EpollReuseport));
        let ours = rendered(Variant::Megapipe);
        assert!(ours.starts_with("load_module /m.so;\n"), "{ours}");
        assert!(ours.contains("use megapipe;") && ours.contains("listen 127.0.0.1:8000;"));
        assert!(rendered(Variant::EpollReuseport).contains("listen 127.0.0.1:8000 reuseport;"));
        assert!(rendered(Variant::Epoll).contains("worker_cpu_affinity 1 1000;"));
    }

    #[test]
    fn many_connections_get_a_backlog_and_room() {
        let many = Settings { connections: 1_000, open_file_cache: true, ..settings() };
        let text = render(Variant::Epoll, None, &many, Path::new("/scratch"), 8_000, &[1]);
        assert!(text.contains("listen 127.0.0.1:8000 backlog=1000;"), "{text}");
        assert!(text.contains("worker_connections 8000;"), "{text}");
        assert!(text.contains("open_file_cache max"), "{text}");
    }
}

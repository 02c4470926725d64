//! nginx with the channel's event module: builds `ngx_megapipe_module.so` against the source of the
//! installed nginx, and starts a server with it.

mod sanitized;

use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{library, newer, source, stripped};
use crate::cargo::absolute_target;
use crate::command::quietly;
use crate::lock::Lock;
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
        return sanitized::test(root);
    }
    let arguments = arguments(words)?;
    setup::run_for(setup::NGINX)?;
    let target = absolute_target(root)?;
    let module = module(root)?;
    println!("nginx: {}", module.display());
    if arguments.build_only { Ok(()) } else { serve(&target, &module, &arguments) }
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

/// Builds the module; returns its path.
pub(crate) fn module(root: &Path) -> Result<PathBuf, String> {
    build(root, &absolute_target(root)?)
}

/// Builds the module unless it is up to date; returns its path.
fn build(root: &Path, target: &Path) -> Result<PathBuf, String> {
    let built = target.join("apps/nginx");
    let build =
        Build { objects: built.join("objects"), targets: &["modules"], arguments: Vec::new() };
    // Held until the module is in its place.
    let _alone = build.make(root, target)?;
    let (made, module) = (build.objects.join(MODULE), built.join(MODULE));
    let slim = stripped(&made, &module)?;
    place(&slim, &module).map_err(|error| format!("cannot place {}: {error}", module.display()))?;
    Ok(module)
}

/// A build of nginx's source with the module.
struct Build {
    /// The directory for what it makes.
    objects: PathBuf,
    /// The targets of nginx's Makefile.
    targets: &'static [&'static str],
    /// Arguments of `configure` after those of the installed nginx, whose place they take.
    arguments: Vec<String>,
}

impl Build {
    /// Makes the targets, unless they are up to date. Returns a lock against other processes that
    /// build.
    fn make(&self, root: &Path, target: &Path) -> Result<Lock, String> {
        let library = library(root, target)?;
        let tree = source::fetch(target, "nginx", source::Version::Installed)?;
        let ours = root.join("apps/nginx");
        let alone = Lock::of(&target.join("apps/nginx"))?;
        let mut arguments = kept(&words(&configured()?));
        arguments.extend_from_slice(&self.arguments);
        let makefile = self.objects.join("Makefile");
        // Another nginx, or another set of files, needs a new Makefile.
        let recipe = format!(
            "{}\n{}\n{}\n{}",
            tree.display(),
            arguments.join(" "),
            library.display(),
            fs::read_to_string(ours.join("config")).map_err(|error| format!("config: {error}"))?
        );
        let recipe_path = self.objects.with_extension("recipe");
        let same = fs::read_to_string(&recipe_path).is_ok_and(|before| before == recipe);
        if !same || !makefile.is_file() {
            let mut configure = Command::new("./configure");
            configure.args(&arguments).arg(format!("--builddir={}", self.objects.display()));
            configure.arg(format!("--add-dynamic-module={}", ours.display()));
            configure.env("MEGAPIPE_LIBRARY", &library).current_dir(&tree);
            configure.env("MEGAPIPE_INCLUDE", root.join("crates/capi/include"));
            quietly(&mut configure, "nginx's configure")?;
            fs::write(&recipe_path, recipe).map_err(|error| format!("recipe: {error}"))?;
        }
        // make does not know that the module depends on the library.
        let made = self.objects.join(MODULE);
        if newer(&library, &made) {
            let _ = fs::remove_file(&made);
        }
        let mut make = Command::new("make");
        make.arg("-f").arg(&makefile).args(self.targets).arg("-j2").current_dir(&tree);
        quietly(&mut make, "make of nginx")?;
        Ok(alone)
    }
}

/// Copies the module to the path from which servers load it, unless it is there already. A server
/// that has the old file mapped keeps it.
fn place(made: &Path, module: &Path) -> io::Result<()> {
    let bytes = fs::read(made)?;
    if fs::read(module).is_ok_and(|before| before == bytes) {
        return Ok(());
    }
    let fresh = module.with_extension("so.new");
    fs::copy(made, &fresh)?;
    fs::rename(&fresh, module)
}

/// Returns the configure arguments of the installed nginx.
fn configured() -> Result<String, String> {
    let output = Command::new("nginx").arg("-V").stdin(Stdio::null()).output();
    let output = output.map_err(|error| {
        format!("cannot run nginx: {error}; install the package nginx (cargo xtask setup)")
    })?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    said.lines()
        .find_map(|line| line.strip_prefix("configure arguments: "))
        .map(String::from)
        .ok_or_else(|| {
            "`nginx -V` prints no configure arguments; put the distribution's nginx first on the \
             PATH"
                .to_string()
        })
}

/// Splits a shell command with single quotes, as `nginx -V` prints it, into words.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quoted = false;
    for character in line.chars() {
        match character {
            '\'' => quoted = !quoted,
            ' ' if !quoted => {
                words.extend(Some(std::mem::take(&mut word)).filter(|w| !w.is_empty()))
            }
            other => word.push(other),
        }
    }
    words.extend(Some(word).filter(|word| !word.is_empty()));
    words
}

/// Returns the arguments without other dynamic modules, whose libraries the build would need; they
/// do not change nginx's structures.
fn kept(words: &[String]) -> Vec<String> {
    let is_dynamic = |word: &str| word.ends_with("=dynamic") || word.starts_with("--add-");
    words.iter().filter(|word| !is_dynamic(word)).cloned().collect()
}

/// Executes nginx in place of this process, so that it gets the terminal's signals.
fn serve(target: &Path, module: &Path, arguments: &Arguments) -> Result<(), String> {
    let prefix = target.join("apps/nginx/run");
    for below in ["html", "temp"] {
        let directory = prefix.join(below);
        fs::create_dir_all(&directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    }
    let config = match &arguments.config {
        Some(config) => config.clone(),
        None => sample(&prefix, module, arguments.port)?,
    };
    let config = config.canonicalize().map_err(|error| {
        format!("cannot read {}: {error}; name a readable file with --config", config.display())
    })?;
    let mut command = Command::new("nginx");
    command.arg("-p").arg(&prefix).arg("-c").arg(&config).args(["-e", "stderr"]);
    command.args(["-g", "daemon off;"]);
    Err(format!(
        "cannot start nginx: {}; install the package nginx (cargo xtask setup)",
        command.exec()
    ))
}

/// Writes a configuration that serves one page, and prints its address.
fn sample(prefix: &Path, module: &Path, port: Option<u16>) -> Result<PathBuf, String> {
    let port = match port {
        Some(port) => port,
        None => TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .map_err(|error| format!("cannot find a free port: {error}; name one with --port"))?
            .port(),
    };
    let write = |name: &str, text: &str| {
        let path = prefix.join(name);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok::<PathBuf, String>(path)
    };
    write("html/index.html", "<!doctype html><title>It works</title><p>nginx on MegaPipe\n")?;
    let config = write("nginx.conf", &sample_text(module, port))?;
    println!("nginx: http://127.0.0.1:{port}/ (status: /status), Ctrl-C ends it");
    println!("nginx: its configuration is {}", config.display());
    Ok(config)
}

fn sample_text(module: &Path, port: u16) -> String {
    format!(
        "load_module {};\n\
         worker_processes auto;\n\
         pid nginx.pid;\n\
         error_log stderr notice;\n\
         events {{\n    use megapipe;\n    worker_connections 4096;\n}}\n\
         http {{\n    access_log off;\n    sendfile on;\n    tcp_nopush on;\n\
         \x20   client_body_temp_path temp/body;\n    proxy_temp_path temp/proxy;\n\
         \x20   fastcgi_temp_path temp/fastcgi;\n    uwsgi_temp_path temp/uwsgi;\n\
         \x20   scgi_temp_path temp/scgi;\n\
         \x20   server {{\n        listen 127.0.0.1:{port};\n        root html;\n\
         \x20       location = /status {{ stub_status; }}\n    }}\n}}\n",
        module.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn the_command_line_is_read() {
        assert_eq!(arguments(&[]), Ok(Arguments::default()));
        let wish_of = arguments(&["--build", "--port", "8080"]).unwrap();
        assert_eq!(wish_of, Arguments { build_only: true, port: Some(8080), config: None });
        assert!(arguments(&["--port"]).unwrap_err().contains("needs a value"));
        assert!(arguments(&["--port", "x"]).unwrap_err().contains("no port"));
        assert!(arguments(&["now"]).unwrap_err().contains("`now`"));
    }

    #[test]
    fn quoted_arguments_stay_whole() {
        let line = "--with-cc-opt='-g -O2' --with-compat --with-http_xslt_module=dynamic";
        assert_eq!(words(line)[0], "--with-cc-opt=-g -O2");
        assert_eq!(kept(&words(line)), ["--with-cc-opt=-g -O2", "--with-compat"]);
    }

    #[test]
    fn a_module_is_replaced_only_by_another() {
        let directory = tempfile::tempdir().unwrap();
        let [made, module] = ["made.so", "module.so"].map(|name| directory.path().join(name));
        let inode = || fs::metadata(&module).unwrap().ino();
        fs::write(&made, "one").unwrap();
        place(&made, &module).unwrap();
        let first = inode();
        place(&made, &module).unwrap();
        assert_eq!(inode(), first);
        fs::write(&made, "two").unwrap();
        let mapped = fs::File::open(&module).unwrap();
        place(&made, &module).unwrap();
        assert_eq!(io::read_to_string(mapped).unwrap(), "one");
        assert_eq!(fs::read_to_string(&module).unwrap(), "two");
        assert!(place(&directory.path().join("missing"), &module).is_err());
    }

    #[test]
    fn the_sample_names_module_and_port() {
        let text = sample_text(Path::new("/m.so"), 8080);
        assert!(text.starts_with("load_module /m.so;\n"));
        assert!(text.contains("use megapipe;") && text.contains("127.0.0.1:8080;"));
    }
}

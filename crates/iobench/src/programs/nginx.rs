//! nginx with one worker and a small file, and wrk.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use crate::apps::environment::{is_root, room_for};
use crate::error::{Context, Result};
use crate::installed::{find, version};
use crate::load::wrk;
use crate::programs::{Amount, Cell, Printed, Program, Target};
use crate::results::ReportedLatency;
use crate::sys::signals::Signals;

const FILE: &str = "file.txt";
const FILE_BYTES: usize = 1_024;

/// nginx with wrk as its client.
pub(crate) struct Nginx {
    server: PathBuf,
    client: PathBuf,
    connections: u32,
}

impl Nginx {
    /// Finds both programs.
    pub(crate) fn find(connections: u32) -> Result<Nginx> {
        Ok(Nginx { server: find("nginx", "nginx")?, client: find("wrk", "wrk")?, connections })
    }
}

impl Program for Nginx {
    fn name(&self) -> &'static str {
        "nginx"
    }

    fn settings(&self) -> String {
        let version = version(&self.server, "-v");
        format!("{version}; one worker, a file of {FILE_BYTES} bytes, sendfile on, keep-alive")
    }

    fn operations(&self) -> &'static [&'static str] {
        &["get"]
    }

    fn counts_operations(&self) -> bool {
        false
    }

    /// SIGTERM, because a worker survives a master that is killed.
    fn orphan_signal(&self) -> Signal {
        Signal::TERM
    }

    fn server(&self, target: &Target<'_>, _signals: &Signals) -> Result<Vec<String>> {
        const REMEDY: &str = "free some space in the directory for temporary files";
        let write = |name: &str, text: String| -> Result<PathBuf> {
            let path = target.directory.join(name);
            fs::write(&path, text).context(format!("write {}", path.display()), REMEDY)?;
            Ok(path)
        };
        write(FILE, "x".repeat(FILE_BYTES))?;
        let text = configuration(target.directory, target.address.port(), self.connections);
        let file = write("nginx.conf", text)?;
        let [program, prefix, file] =
            [&self.server, target.directory, &file].map(|path: &Path| path.display().to_string());
        let directives = "daemon off;".to_owned();
        Ok(vec![program, "-p".into(), prefix, "-c".into(), file, "-g".into(), directives])
    }

    fn fill(&self, _target: &Target<'_>, _signals: &Signals) -> Result<()> {
        Ok(())
    }

    fn client(&self, target: &Target<'_>, cell: &Cell, amount: Amount) -> Vec<String> {
        let seconds = amount.duration.as_secs_f64().ceil().max(1.0);
        vec![
            self.client.to_string_lossy().into_owned(),
            "-t1".to_owned(),
            format!("-c{}", cell.connections),
            format!("-d{seconds}s"),
            "--latency".to_owned(),
            wrk::LONG_TIMEOUT.to_owned(),
            format!("http://{}/{FILE}", target.address),
        ]
    }

    fn parse(&self, text: &str, _cell: &Cell, _amount: Amount) -> Result<Printed, String> {
        let printed = wrk::parse(text).ok_or_else(|| "wrk told no figures".to_owned())?;
        if printed.errors > 0 || printed.requests == 0 {
            let wrk::Printed { errors, requests, .. } = printed;
            return Err(format!("wrk counted {errors} errors and {requests} answers"));
        }
        let wrk::Printed { requests, rate, latencies, .. } = printed;
        let latency = ReportedLatency {
            mean: None,
            p50: Some(latencies.p50_us),
            p99: Some(latencies.p99_us),
        };
        Ok(Printed { operations: requests, operations_s: rate, latency })
    }
}

fn configuration(directory: &Path, port: u16, connections: u32) -> String {
    let directory = directory.display();
    let user = if is_root() { "user root;\n" } else { "" };
    let room = room_for(connections as usize);
    let paths: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("    {name}_temp_path {directory}/{name};\n"))
        .concat();
    format!(
        "{user}worker_processes 1;\nworker_rlimit_nofile {files};\npid {directory}/nginx.pid;\n\
         error_log stderr;\nevents {{ worker_connections {room}; }}\nhttp {{\n    access_log off;\n\
         \x20   sendfile on;\n    keepalive_requests 1000000000;\n{paths}    server {{\n        \
         listen 127.0.0.1:{port};\n        root {directory};\n    }}\n}}\n",
        files = 2 * room,
    )
}

//! `iobench replay`: sends the requests of an access log at its times to a server, by the rules of
//! the open loop over a URL.

pub(crate) mod generate;
mod timing;

use std::sync::Arc;

use tokio::task::LocalSet;

use crate::access_log::log::{Entry, Format, Log};
use crate::access_log::logged::Request;
use crate::cli::replay::ReplayArgs;
use crate::engine::environment::Environment;
use crate::engine::progress::RunProgress;
use crate::error::{Error, Result};
use crate::exchange::Exchange;
use crate::http_client::address::Url;
use crate::http_client::answer::Expected;
use crate::http_client::connection::Server;
use crate::http_client::open_loop::{Job, Schedule};
use crate::http_client::open_run::OpenRun;
use crate::http_client::request::{Parts, Template};
use crate::http_client::threads::runtime;
use crate::load::Report;
use crate::load::url::report::{describe_open, generators, point};
use crate::load::url::{check_limits, client_side};
use crate::open::phases::Course;
use crate::output;
use crate::replay::timing::{Times, Timing, peak_rate};
use crate::results::files::ResultFiles;
use crate::sys::clock::now_ns;
use crate::sys::signals::Signals;

/// Longest replay: an hour, as of other measurements.
const LENGTH_MAX_NS: u64 = 3_600_000_000_000;
/// A status that a client gets from no server: nginx logs it if the client has gone.
const CLIENT_GONE: u16 = 499;

/// Replays the log and prints the result; true if the row is valid.
pub(crate) fn run(arguments: &ReplayArgs) -> Result<bool> {
    let begun_ns = now_ns();
    let signals = Signals::block();
    let limits = check_limits(&arguments.to, arguments.connections)?;
    let files = ResultFiles::prepare(&arguments.output)?;
    let seed = arguments.seed.unwrap_or(begun_ns % 1_000_000);
    let environment = Environment::gather(&limits, seed)?;
    let plan = Plan::make(arguments)?;
    plan.remarks.iter().for_each(|remark| output::note(remark));
    let (headline, text, row) = plan.run(arguments, seed, &signals)?;
    let report = Report {
        name: "replay",
        text: format!("{}: {headline}: {text}", arguments.to),
        title: format!("{}: {headline}", arguments.to),
        settings: format!("{headline}\n{}\n", plan.remarks.join("\n")),
        rows: vec![row],
    };
    report.publish(environment, begun_ns, files)
}

/// A log that is ready to be replayed.
struct Plan {
    format: Format,
    jobs: Arc<[Arc<Template>]>,
    entries: Arc<[Entry]>,
    times: Times,
    /// The replay's end.
    length_ns: u64,
    remarks: Vec<String>,
}

impl Plan {
    fn make(arguments: &ReplayArgs) -> Result<Plan> {
        let Log { format, requests, mut entries, bad } =
            Log::read(&arguments.log, arguments.format)?;
        if !arguments.any_status {
            entries.iter_mut().for_each(|entry| entry.status = right_status(entry.status, format));
        } else {
            entries.iter_mut().for_each(|entry| entry.status = 0);
        }
        let max_gap_ns = arguments.max_gap.as_nanos() as u64;
        let timing = Timing { speed: arguments.speed, max_gap_ns };
        let times = timing.apply(&mut entries, format);
        let asked_ns = arguments.duration.map(|duration| duration.as_nanos() as u64);
        let length_ns = match asked_ns {
            Some(asked_ns) if arguments.repeated => asked_ns,
            Some(asked_ns) => asked_ns.min(times.length_ns),
            None => times.length_ns,
        };
        if length_ns > LENGTH_MAX_NS {
            let seconds = length_ns / 1_000_000_000;
            return Err(Error::setup(
                format!("the replay of {} would last for {seconds} s", arguments.log.display()),
                "ask for a --duration up to 1h, a higher --speed, or a shorter --max-gap",
            ));
        }
        let mut remarks: Vec<String> = bad.describe().into_iter().collect();
        if times.shortened > 0 {
            let (count, gap) = (times.shortened, arguments.max_gap);
            remarks
                .push(format!("{count} gaps of the log were longer than {gap:?} and are that now"));
        }
        let template = |request: Request| template(arguments, request).map(Arc::new);
        let jobs: Result<Vec<_>> = requests.into_iter().map(template).collect();
        Ok(Plan { format, jobs: jobs?.into(), entries: entries.into(), times, length_ns, remarks })
    }

    /// Returns one thread's part of the schedule: every `threads`-th request.
    fn schedule(&self, number: usize, threads: usize) -> Schedule {
        let (jobs, entries) = (Arc::clone(&self.jobs), Arc::clone(&self.entries));
        let (count, length_ns) = (entries.len(), self.length_ns);
        let times_ns = self.times.length_ns;
        let job = move |place: usize| {
            let entry = entries[place % count];
            let template = Arc::clone(&jobs[entry.request as usize]);
            let status = (entry.status > 0).then_some(entry.status);
            let expected = Expected { status, ..Expected::default() };
            let round = (place / count) as u64;
            (round * times_ns + entry.at_ns, Job { template, expected })
        };
        Box::new(
            (number..).step_by(threads).map(job).take_while(move |(at_ns, _)| *at_ns < length_ns),
        )
    }

    fn run(
        &self,
        arguments: &ReplayArgs,
        seed: u64,
        signals: &Signals,
    ) -> Result<(String, String, crate::results::Row)> {
        let (to, client) = (&arguments.to, &arguments.client);
        let trust = client.trust();
        let reached = Server::reach(to, client.version(), &trust);
        let server = runtime()?.block_on(LocalSet::new().run_until(reached))?;
        let mut side = client_side(to, arguments.client_cpus.as_deref())?;
        let connections = arguments.connections;
        let peak = peak_rate(&self.entries);
        let threads = generators(arguments.generators, peak, &side, connections)?;
        side.cpus.truncate(threads);
        let scheduled = self.schedule(0, 1).count();
        let length_s = self.length_ns as f64 / 1e9;
        let rate = scheduled as f64 / length_s;
        let headline = format!(
            "replay of {scheduled} requests in {length_s:.1} s ({rate:.0}/s, at most {peak:.0}/s) \
             from {} ({}), {} different, on up to {connections} connections, {}",
            arguments.log.display(),
            self.format.name(),
            self.jobs.len(),
            server.version.name()
        );
        let course = Course { rate, growth_ns: 0, steady_ns: 0, measure_ns: self.length_ns };
        let streams = client.streams_of(to, server.version)?;
        let run = OpenRun {
            server: &server,
            client: &side,
            course,
            timeout_ns: arguments.timeout.as_nanos() as u64,
            by: client.connections_by,
            connections,
            streams,
            seed,
            schedules: (0..threads).map(|number| self.schedule(number, threads)).collect(),
        };
        let progress = RunProgress::new(to.to_string());
        let result = run.run(None, signals, &progress)?;
        drop(progress);
        let unknown = Exchange { request_bytes: 0, response_bytes: 0 };
        let point = point(side.cpus, connections, rate, unknown);
        let (text, mut row) = describe_open(result, &point, &to.to_string(), server.version)?;
        row.workload = format!("replay over {}", server.version.name());
        Ok((headline, text, row))
    }
}

/// Returns the status that the replayed request should get; 0 if it may be any. Access logs do not
/// have the headers that ask for a part, or for a change only.
fn right_status(logged: u16, format: Format) -> u16 {
    match logged {
        CLIENT_GONE => 0,
        206 | 304 if format != Format::Gor => 200,
        logged => logged,
    }
}

/// Makes a request of the log one for the server.
fn template(arguments: &ReplayArgs, request: Request) -> Result<Template> {
    let Request { method, path, headers, body } = request;
    let base: &Url = &arguments.to;
    let path = format!("{}{path}", base.path.trim_end_matches('/'));
    // The user's headers replace those of the log.
    let own = &arguments.client.headers;
    let kept = headers.into_iter().filter(|(name, _)| own.iter().all(|(own, _)| own != name));
    let parts = Parts { method, headers: own.iter().cloned().chain(kept).collect(), body };
    base.with_path(&path).and_then(|url| Template::new(&url, &parts)).map_err(|cause| {
        Error::setup(cause, "correct the URL of --to, or remove this request from the log")
    })
}

#[cfg(test)]
mod tests;

//! Runs the generators' threads, samples them and the server, and merges the records.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, Scope, ScopedJoinHandle};

use crate::engine::progress::RunProgress;
use crate::engine::sampler::{self, Used};
use crate::error::{Context, Error, Result};
use crate::open::arrivals::Schedule;
use crate::open::churn::{OpenThread, ServeThread, World};
use crate::open::connect::raw;
use crate::open::dialogue::Dialogue;
use crate::open::gauge::{Gauge, Reading};
use crate::open::inflight::InFlight;
use crate::open::log::Entry;
use crate::open::outcome::OpenOutcome;
use crate::open::receiver::ReceiveThread;
use crate::open::record::{Bins, LogTap, ReceiveRecord, SendRecord};
use crate::open::reopen::Reopening;
use crate::open::sender::{SendThread, Shared};
use crate::open::summary::{GeneratorRecords, Sample, Summary};
use crate::open::timestamps::{self, Sampler};
use crate::open::{GeneratorCpus, Load, Prepared};
use crate::random::SplitMix64;

use crate::sys::affinity::{self, thread_id};
use crate::sys::clock::now_ns;
use crate::sys::procstat::ThreadReader;
use crate::sys::signals::Signals;
use crate::sys::socket::RawAddress;

type LogSink = Option<Sender<Vec<Entry>>>;

/// Runs all generators from `start_ns` to the end.
pub(super) fn run(
    prepared: &Prepared,
    start_ns: u64,
    sink: LogSink,
    gauge: &dyn Gauge,
    signals: &Signals,
    progress: &RunProgress,
) -> Result<OpenOutcome> {
    let generators = 0..prepared.plan.generators.len();
    let shared: Vec<Shared> = generators.map(|number| new_shared(prepared, number)).collect();
    thread::scope(|scope| {
        let generators = shared
            .iter()
            .enumerate()
            .map(|(number, shared)| {
                Generator::start(scope, prepared, number, shared, start_ns, &sink)
            })
            .collect::<Result<Vec<Generator<'_>>>>();
        let watched = generators.and_then(|generators| {
            let threads: Vec<i32> =
                generators.iter().flat_map(|generator| generator.thread_ids).collect();
            let client = prepared.plan.client_side();
            let sampler = sampler::Sampler::new(&client, &threads, gauge.side().as_ref())?;
            let sides = sampler.sides();
            let mut coordinator =
                Coordinator { prepared, start_ns, gauge, shared: &shared, sampler };
            let watched = coordinator.watch(&generators, signals, progress);
            Ok((generators, watched?, sides))
        });
        if watched.is_err() {
            shared.iter().for_each(Shared::cancel);
        }
        let (generators, Watched { samples, end_ns }, sides) = watched?;
        let records = generators
            .into_iter()
            .map(Generator::finish)
            .collect::<Result<Vec<GeneratorRecords>>>()?;
        let summary = Summary { prepared, gauge, samples: &samples, sides, start_ns, end_ns };
        Ok(summary.outcome(&records))
    })
}

fn new_shared(prepared: &Prepared, number: usize) -> Shared {
    let plan = &prepared.plan;
    // Connections of a churn have one request in flight, and no queue.
    let connections = match &prepared.load {
        Load::Standing(sockets) => sockets[number].len(),
        Load::Churn(..) => 0,
    };
    // Enough for a server that stops for the whole time-out, with four times the mean.
    let per_connection = plan.course.rate / plan.connections as f64;
    let expected = (4.0 * per_connection * plan.timeout_ns as f64 / 1e9).ceil() as usize + 16;
    Shared::new(InFlight::new(connections, expected))
}

/// The two running threads of a generator.
struct Generator<'scope> {
    cpus: GeneratorCpus,
    sender: ScopedJoinHandle<'scope, Result<SendRecord>>,
    receiver: ScopedJoinHandle<'scope, Result<ReceiveRecord>>,
    readers: [ThreadReader; 2],
    thread_ids: [i32; 2],
}

impl<'scope> Generator<'scope> {
    fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        prepared: &'env Prepared,
        number: usize,
        shared: &'env Shared,
        start_ns: u64,
        sink: &LogSink,
    ) -> Result<Generator<'scope>> {
        let cpus = prepared.plan.generators[number];
        let (ids, started) = channel();
        let receiver_ids = ids.clone();
        let log = || LogTap::new(sink.clone(), prepared.plan.numbering(number));
        let (send_log, receive_log) = (log(), log());
        let receiver = thread::Builder::new()
            .name(format!("receive-{number}"))
            .spawn_scoped(scope, move || {
                // Dropped even if the thread ends early, so that no thread waits for the number.
                let ids = receiver_ids;
                affinity::pin_to(cpus.receiver)?;
                let _ = ids.send((1, thread_id()));
                drop(ids);
                let result = receive(prepared, number, shared, start_ns, receive_log)?;
                shared.wait_until_sampled();
                Ok(result)
            })
            .context("start a receive thread", "raise `ulimit -u`")?;
        let sender = thread::Builder::new()
            .name(format!("send-{number}"))
            .spawn_scoped(scope, move || {
                let prepare = affinity::pin_to(cpus.sender);
                let _ = ids.send((0, thread_id()));
                drop(ids);
                if let Err(error) = prepare {
                    shared.sent_all.store(true, Ordering::Release);
                    return Err(error);
                }
                let record = send(prepared, number, shared, start_ns, send_log);
                shared.wait_until_sampled();
                Ok(record)
            })
            .context("start a send thread", "raise `ulimit -u`")?;
        let mut numbers = [0; 2];
        for (place, id) in started {
            numbers[place] = id;
        }
        let reader = |id| ThreadReader::new(std::process::id(), id);
        match reader(numbers[0]).and_then(|first| Ok([first, reader(numbers[1])?])) {
            Ok(readers) => Ok(Generator { cpus, sender, receiver, readers, thread_ids: numbers }),
            Err(error) => {
                shared.cancel();
                // If a thread ended at its start, its error is the cause.
                join(sender).and(join(receiver).map(|_| ())).and(Err(error))
            }
        }
    }

    /// CPU time of the threads on the sender's CPU.
    fn run_ns(&self) -> u64 {
        let [sender, receiver] = &self.readers;
        let shared = self.cpus.sender == self.cpus.receiver;
        sender.read().run_ns + if shared { receiver.read().run_ns } else { 0 }
    }

    fn finish(self) -> Result<GeneratorRecords> {
        let (send, received) = (join(self.sender), join(self.receiver));
        Ok(GeneratorRecords { send: send?, receive: received? })
    }
}

fn join<T>(thread: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|_| {
        Err(Error::setup("a generator thread panicked", "report this as a bug"))
    })
}

/// Returns the receive thread's function, for both kinds of load.
fn receive(
    prepared: &Prepared,
    number: usize,
    shared: &Shared,
    start_ns: u64,
    log: LogTap,
) -> Result<ReceiveRecord> {
    let plan = &prepared.plan;
    let dialogue = dialogue(prepared, number);
    let record = ReceiveRecord::new(plan.course, start_ns, plan.timeout_ns, log);
    let give_up_ns = start_ns + plan.course.end_ns() + plan.timeout_ns;
    match &prepared.load {
        Load::Standing(sockets) => {
            let connections = raw(&sockets[number]);
            let thread = ReceiveThread {
                epoll: ReceiveThread::watch(&connections)?,
                partial: vec![0; connections.len()],
                latest: vec![0; connections.len()],
                reopening: Reopening::new(RawAddress::new(prepared.target), connections.len()),
                connections,
                dialogue,
                shared,
                give_up_ns,
                record,
                taken: 0,
            };
            Ok(thread.run())
        }
        Load::Churn(churn, pool) => {
            let world = World { churn, shared };
            Ok(ServeThread::new(world, &pool[number], dialogue, give_up_ns, record).run())
        }
    }
}

/// Returns the requests and expected replies of a generator; the same for both of its threads.
fn dialogue(prepared: &Prepared, number: usize) -> Dialogue {
    let plan = &prepared.plan;
    let salt = SplitMix64::new(plan.seed ^ (number as u64) << 48).next();
    Dialogue::new(plan.exchange, plan.own_server, salt, plan.numbering(number))
}

/// Returns the send thread's function, for both kinds of load.
fn send(
    prepared: &Prepared,
    number: usize,
    shared: &Shared,
    start_ns: u64,
    log: LogTap,
) -> SendRecord {
    let plan = &prepared.plan;
    let dialogue = dialogue(prepared, number);
    let course = plan.course.with_rate(plan.course.rate / plan.generators.len() as f64);
    // Each generator draws from seeds of its own, well apart.
    let mut seeds = SplitMix64::new(plan.seed.wrapping_add(number as u64));
    let schedule = Schedule::new(plan.arrivals, course, seeds.next());
    let record = SendRecord::new(course, start_ns, log);
    match &prepared.load {
        Load::Standing(sockets) => {
            let connections = raw(&sockets[number]);
            connections.iter().for_each(|&fd| timestamps::prepare(fd));
            let thread = SendThread {
                start_ns,
                schedule,
                unsent: vec![0; connections.len()],
                latest: vec![0; connections.len()],
                connections,
                dialogue,
                shared,
                random: SplitMix64::new(seeds.next()),
                sampler: Sampler::new(course.rate),
                record,
                clogged: Vec::new(),
            };
            thread.run()
        }
        Load::Churn(churn, pool) => {
            let (world, pool) = (World { churn, shared }, &pool[number]);
            OpenThread { world, start_ns, schedule, pool, dialogue, record }.run()
        }
    }
}

/// The samples of a run.
struct Watched {
    samples: Vec<Sample>,
    /// When the last request was due.
    end_ns: u64,
}

/// Samples a run from outside the generators.
struct Coordinator<'a> {
    prepared: &'a Prepared,
    start_ns: u64,
    gauge: &'a dyn Gauge,
    shared: &'a [Shared],
    sampler: sampler::Sampler,
}

impl Coordinator<'_> {
    /// Samples at the borders of the bins and of the measured period until the end, or
    /// until a signal, if the outcome of a part is of use.
    fn watch(
        &mut self,
        generators: &[Generator<'_>],
        signals: &Signals,
        progress: &RunProgress,
    ) -> Result<Watched> {
        let (plan, course) = (&self.prepared.plan, &self.prepared.plan.course);
        let bins = Bins::new(course);
        let mut borders: Vec<u64> = (0..bins.counts.len()).map(|bin| bins.end_of(bin)).collect();
        borders.extend([0, course.measure_from_ns(), course.end_ns()]);
        borders.sort_unstable();
        borders.dedup();
        let mut samples = Vec::with_capacity(borders.len());
        let measure_from_ns = self.start_ns + course.measure_from_ns();
        let mut end_ns = self.start_ns + course.end_ns();
        for border in borders {
            let slept = signals.sleep_until(self.start_ns + border);
            let measures =
                samples.last().is_some_and(|last: &Sample| last.server.at_ns >= measure_from_ns);
            let is_last = slept.is_err() && plan.keeps_part && measures;
            if !is_last {
                slept?;
            }
            samples.push(self.sample(generators));
            progress.show(course.phase(border).name(), border, course.end_ns());
            if is_last {
                self.shared.iter().for_each(|shared| shared.last.store(true, Ordering::Relaxed));
                end_ns = now_ns();
                break;
            }
        }
        self.shared.iter().for_each(|shared| shared.sampled.store(true, Ordering::Relaxed));
        // When the last answers have arrived or were given up, the threads end by themselves.
        let finished = |generator: &Generator<'_>| generator.receiver.is_finished();
        while !generators.iter().all(finished) {
            let slept = signals.sleep_ms(1);
            if !plan.keeps_part {
                slept?;
            } else if slept.is_err() || now_ns() > end_ns + plan.timeout_ns {
                self.shared.iter().for_each(Shared::cancel);
            }
        }
        Ok(Watched { samples, end_ns })
    }

    fn sample(&mut self, generators: &[Generator<'_>]) -> Sample {
        let server = Reading::take(self.gauge);
        Sample {
            server,
            border: self
                .sampler
                .border(Used { client_ns: None, server_ns: server.cpu_ns.unwrap_or(0) }),
            generators_ns: generators.iter().map(Generator::run_ns).sum(),
        }
    }
}

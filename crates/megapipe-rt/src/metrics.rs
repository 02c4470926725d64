//! Counts of each core for Prometheus, by the feature `metrics`.
//!
//! [`text`] makes the text for a route of your server, and [`read`] returns the numbers. Each core
//! counts for itself without atomic operations, and answers between two turns of its loop, so
//! reading disturbs no message. A core that a task blocks makes its readers wait;
//! [`Handle::dump`](crate::Handle::dump) names the task.
//!
//! The names begin with `megapipe_rt_`; `docs/reference/counters.md` lists them.
//!
//! ```
//! use megapipe_rt::{Handle, metrics};
//!
//! /// The handler of the route `/metrics`, for example of axum.
//! async fn text() -> String {
//!     metrics::text(&Handle::current()).await
//! }
//! ```

pub use crate::counts::{CoreMetrics, Histogram};
use crate::handle::Handle;
use crate::task::{Finisher, JoinHandle, Outcome};
use std::fmt::Write;

/// The type of the text, for the header `Content-Type`.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A number of each core, as Prometheus gets it.
struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    value: fn(&CoreMetrics) -> u64,
}

macro_rules! families {
    ($($name:literal $kind:ident $help:literal $value:expr;)+) => {
        &[$(Family { name: $name, kind: stringify!($kind), help: $help, value: $value }),+]
    };
}

const FAMILIES: &[Family] = families! {
    "connections_open" gauge "Stream connections that are open."
        |core| core.connections_opened - core.connections_closed;
    "connections_opened_total" counter "Accepted, connected and taken over stream connections."
        |core| core.connections_opened;
    "connections_accepted_total" counter "Stream connections that a listener accepted."
        |core| core.connections_accepted;
    "tasks" gauge "Tasks that have not ended."
        |core| core.tasks;
    "tasks_spawned_total" counter "Tasks that were started."
        |core| core.tasks_spawned;
    "polls_total" counter "Polls of tasks."
        |core| core.polls;
    "messages_total" counter "Messages of other threads to the core."
        |core| core.messages;
    "timers" gauge "Timers that have not fired."
        |core| core.timers;
    "timers_fired_total" counter "Timers that have fired."
        |core| core.timers_fired;
    "sleeps_total" counter "Waits for completions that could sleep."
        |core| core.sleeps;
    "channel_requests_total" counter "Requests to the channel."
        |core| core.channel.requests;
    "channel_completions_total" counter "Completions of the channel."
        |core| core.channel.completions;
    "channel_operations_total" counter "Operations that the channel gave to its driver."
        |core| core.channel.operations;
    "channel_system_calls_total" counter "System calls of the channel on the data path."
        |core| core.channel.system_calls;
    "channel_waits_total" counter "Times the channel slept or polled the kernel."
        |core| core.channel.waits;
    "channel_batched_total" counter "Completions of the channel's waits."
        |core| core.channel.batched;
    "channel_largest_batch" gauge "Largest number of completions of one wait."
        |core| core.channel.largest_batch;
    "channel_buffer_waits_total" counter "Receives that waited because all buffers were leased."
        |core| core.channel.buffer_waits;
    "channel_paused_total" counter "Receives that paused because much output was queued."
        |core| core.channel.paused;
    "channel_copied_total" counter "Leases that were copied for a write."
        |core| core.channel.copied;
    "channel_overflows_total" counter "Times the completion queue overflowed."
        |core| core.channel.overflows;
    "channel_refused_total" counter "Requests refused because a queue was full."
        |core| core.channel.refused;
    "channel_cancelled_total" counter "Completions dropped because their handle had ended."
        |core| core.channel.cancelled;
    "channel_stolen_total" counter "Connections taken from the accept queue of a busy channel."
        |core| core.channel.stolen;
    "channel_adopted_total" counter "Accept queues taken over from channels that ended."
        |core| core.channel.adopted;
    "channel_orphaned_total" counter "Connections closed because no channel could take them over."
        |core| core.channel.orphaned;
    "channel_rebalanced_total" counter "Times the channel began to rebalance a listener."
        |core| core.channel.rebalanced;
};

/// Returns the numbers of all cores, in their order; those that have ended are left out. The first
/// core answers only while `block_on` runs it.
pub async fn read(handle: &Handle) -> Vec<CoreMetrics> {
    let ask = |core: &std::sync::Arc<crate::core::Remote>| {
        let outcome = Outcome::new();
        let finisher = Finisher::new(&outcome);
        core.run(move |core| finisher.finish(Ok(core.metrics())));
        JoinHandle::new(outcome)
    };
    let answers: Vec<JoinHandle<CoreMetrics>> = handle.cores.iter().map(ask).collect();
    let mut all = Vec::new();
    for answer in answers {
        all.extend(answer.await);
    }
    all
}

/// Returns the numbers of all cores in the text format of Prometheus, version 0.0.4; see
/// [`CONTENT_TYPE`]. Each has the label `core`.
pub async fn text(handle: &Handle) -> String {
    render(&read(handle).await)
}

fn render(cores: &[CoreMetrics]) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_families(&mut out, cores);
    out
}

fn write_families(out: &mut String, cores: &[CoreMetrics]) -> std::fmt::Result {
    for Family { name, kind, help, value } in FAMILIES {
        write_heading(out, name, kind, help)?;
        for core in cores {
            writeln!(out, "megapipe_rt_{name}{{core=\"{}\"}} {}", core.core, value(core))?;
        }
    }
    let name = "batch_completions";
    write_heading(out, name, "histogram", "Completions of each turn of the loop.")?;
    for core in cores {
        // A turn takes at most 256 completions.
        write_histogram(out, name, core.core, &core.batches, 0..=4, 1.0)?;
    }
    let name = "loop_lag_seconds";
    write_heading(out, name, "histogram", "Time from completions to the end of the tasks' polls.")?;
    for core in cores {
        // From 1 us to 4.3 s.
        write_histogram(out, name, core.core, &core.loop_lag_ns, 5..=16, 1e9)?;
    }
    Ok(())
}

fn write_heading(out: &mut String, name: &str, kind: &str, help: &str) -> std::fmt::Result {
    writeln!(out, "# HELP megapipe_rt_{name} {help}\n# TYPE megapipe_rt_{name} {kind}")
}

/// Writes the buckets up to 4ⁿ for each `n` of the range, whose values are divided by `unit`.
fn write_histogram(
    out: &mut String,
    name: &str,
    core: usize,
    histogram: &Histogram,
    buckets: std::ops::RangeInclusive<usize>,
    unit: f64,
) -> std::fmt::Result {
    let prefix = format!("megapipe_rt_{name}");
    for n in buckets {
        let bound = (1u64 << (2 * n)) as f64 / unit;
        let count = histogram.count_up_to(n);
        writeln!(out, "{prefix}_bucket{{core=\"{core}\",le=\"{bound}\"}} {count}")?;
    }
    let (count, sum) = (histogram.count(), histogram.sum() as f64 / unit);
    writeln!(out, "{prefix}_bucket{{core=\"{core}\",le=\"+Inf\"}} {count}")?;
    writeln!(out, "{prefix}_sum{{core=\"{core}\"}} {sum}")?;
    writeln!(out, "{prefix}_count{{core=\"{core}\"}} {count}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapipe::Counters;
    use testkit::{documented, field_names};

    #[test]
    fn every_counter_of_the_channel_is_there() {
        let kept = |name: &String| {
            FAMILIES.iter().any(|family| {
                let own = family.name.trim_end_matches("_total").strip_prefix("channel_");
                own == Some(name)
            })
        };
        let missing: Vec<_> =
            field_names(&Counters::default()).into_iter().filter(|name| !kept(name)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn every_metric_is_in_the_reference() {
        let mut names: std::collections::BTreeSet<String> =
            FAMILIES.iter().map(|family| family.name.to_string()).collect();
        names.extend(["batch_completions", "loop_lag_seconds"].map(String::from));
        assert_eq!(documented("counters.md", "megapipe-rt"), names);
    }
}

//! The client's threads: one for each CPU, with a runtime of its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;

use crate::engine::sampler::Border;
use crate::error::{Context, Error, Result};
use crate::sys::affinity::{pin_to, thread_id};

/// Makes a runtime for one thread.
pub(crate) fn runtime() -> Result<Runtime> {
    Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .context("start the client's runtime", "raise the limit of open files (ulimit -n)")
}

/// Runs each part on a thread and a CPU of its own. Meanwhile `watch` runs here, with the ids of
/// the threads; when it returns, `stop` is set and the threads have to end.
pub(crate) fn run<P: Send, R: Send, T>(
    cpus: &[usize],
    parts: Vec<P>,
    body: impl AsyncFn(P) -> R + Sync,
    stop: &AtomicBool,
    watch: impl FnOnce(&[i32]) -> Result<T>,
) -> Result<(T, Vec<R>)> {
    let count = parts.len();
    thread::scope(|scope| {
        let (ids, started) = channel();
        let start = |(part, &cpu): (P, &usize)| {
            let (ids, body) = (ids.clone(), &body);
            thread::Builder::new()
                .name(format!("http-{cpu}"))
                .spawn_scoped(scope, move || -> Result<R> {
                    pin_to(cpu)?;
                    let runtime = runtime()?;
                    // The receiver waits until all threads have told their ids or have failed.
                    let _ = ids.send(thread_id());
                    drop(ids);
                    Ok(LocalSet::new().block_on(&runtime, body(part)))
                })
                .context("start a client thread", "raise `ulimit -u`")
        };
        let threads: Vec<_> = parts.into_iter().zip(cpus).map(start).collect();
        drop(ids);
        let ids: Vec<i32> = started.iter().collect();
        let watched = (ids.len() == count).then(|| watch(&ids));
        stop.store(true, Ordering::Relaxed);
        let join = |thread: Result<thread::ScopedJoinHandle<'_, Result<R>>>| {
            thread?.join().unwrap_or_else(|_| {
                Err(Error::setup("a client thread panicked", "report this as a bug"))
            })
        };
        // All are joined before the first error is returned.
        let records: Vec<Result<R>> = threads.into_iter().map(join).collect();
        let records = records.into_iter().collect::<Result<Vec<R>>>();
        match watched {
            Some(Err(error)) => Err(error),
            Some(Ok(watched)) => Ok((watched, records?)),
            None => Err(records.err().unwrap_or_else(|| {
                Error::setup("a client thread ended at its start", "report this as a bug")
            })),
        }
    })
}

/// Returns the largest share of the time between two borders in which a thread waited for its CPU.
pub(crate) fn starved(borders: &[Border]) -> f64 {
    let (Some(first), Some(last)) = (borders.first(), borders.last()) else { return 0.0 };
    let elapsed_ns = last.at_ns.saturating_sub(first.at_ns).max(1) as f64;
    let threads = first.client.threads.iter().zip(&last.client.threads);
    let waits = threads.map(|(from, to)| to.delay_ns.saturating_sub(from.delay_ns) as f64);
    waits.fold(0.0, f64::max) / elapsed_ns
}

/// Divides a number among parts as evenly as possible.
pub(crate) fn divide(number: usize, parts: usize) -> Vec<usize> {
    (0..parts).map(|part| number / parts + usize::from(part < number % parts)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_in_the_division() {
        assert_eq!(divide(7, 3), [3, 2, 2]);
        assert_eq!(divide(2, 2), [1, 1]);
    }

    #[test]
    fn the_error_of_a_thread_is_the_cause() {
        let stop = AtomicBool::new(false);
        let body = async |number: usize| number;
        let cpus = [usize::MAX >> 1];
        let error = run(&cpus, vec![1], body, &stop, |_| Ok(())).unwrap_err().to_string();
        assert!(error.contains("pin a thread"), "{error}");
    }
}

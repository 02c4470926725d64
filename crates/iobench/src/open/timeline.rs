//! Makes the timeline of an open-loop run from the bins of its threads.

use crate::open::phases::Course;
use crate::open::record::{Bin, Bins};
use crate::results::Moment;

/// Returns the timeline: requests due and answers that came, by bin, of the first `length_ns`.
/// `busy` returns the busy share of the server's CPUs between two times.
pub(crate) fn timeline(
    course: &Course,
    due: &Bins,
    came: &Bins,
    connections: usize,
    length_ns: u64,
    busy: impl Fn(u64, u64) -> Option<f64>,
) -> Vec<Moment> {
    let mut from_ns = 0;
    let mut moments = Vec::with_capacity(due.bins.len());
    for (number, (due_bin, came_bin)) in due.bins.iter().zip(&came.bins).enumerate() {
        let to_ns = due.end_of(number);
        if from_ns >= length_ns {
            break;
        }
        let seconds = (to_ns - from_ns) as f64 / 1e9;
        let quantile = |bin: &Bin, quantile| {
            let times = &bin.times;
            (!times.is_empty()).then(|| times.value_at_quantile(quantile) as f64 / 1e3)
        };
        moments.push(Moment {
            t_s: to_ns as f64 / 1e9,
            phase: course.phase(from_ns.midpoint(to_ns)).name().to_owned(),
            connections,
            offered_rate: due_bin.count as f64 / seconds,
            throughput: came_bin.count as f64 / seconds,
            send_lag_p50_us: quantile(due_bin, 0.5),
            send_lag_p99_us: quantile(due_bin, 0.99),
            service_p50_us: quantile(came_bin, 0.5),
            service_p99_us: quantile(came_bin, 0.99),
            server_busy: busy(from_ns, to_ns),
        });
        from_ns = to_ns;
    }
    moments
}

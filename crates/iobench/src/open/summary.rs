//! Makes the outcome of a run from the generators' records and the samples taken during the run.

use crate::engine::sampler::{Border, Disturbance, Sides, disturbance, unjudged};
use crate::figures::{Percentiles, Times, new_times};
use crate::open::churn::ChurnConnections;
use crate::open::gauge::{Gauge, Reading, ServerUse};
use crate::open::outcome::OpenOutcome;
use crate::open::record::{Bins, Faults, ReceiveRecord, SendRecord};
use crate::open::verdict::{Evidence, silence, unanswered};
use crate::open::{Load, Prepared};
use crate::results::Accounts;

/// All counters at one moment.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    pub(crate) server: Reading,
    pub(crate) border: Border,
    /// CPU time of the generators' threads on the senders' CPUs.
    pub(crate) generators_ns: u64,
}

/// The records of one generator's two threads.
pub(crate) struct GeneratorRecords {
    pub(crate) send: SendRecord,
    pub(crate) receive: ReceiveRecord,
}

/// Sums over all generators.
#[derive(Debug, Default)]
struct Totals {
    accounts: Accounts,
    faults: Faults,
    /// Answers that arrived in the measured period.
    answers: u64,
    hurried: u64,
    reopened: u64,
    cut_short: u64,
}

impl Totals {
    fn of(records: &[GeneratorRecords]) -> Totals {
        let mut totals = Totals::default();
        for GeneratorRecords { send, receive } in records {
            totals.accounts.add(&receive.accounts);
            totals.accounts.scheduled += send.scheduled;
            totals.accounts.refused += send.refused;
            totals.faults.add(&receive.faults);
            totals.answers += receive.answers;
            totals.hurried += send.hurried;
            totals.reopened += receive.reopened;
            totals.cut_short += receive.cut_short;
        }
        totals
    }
}

/// The data from which the outcome is made.
pub(crate) struct Summary<'a> {
    pub(crate) prepared: &'a Prepared,
    pub(crate) gauge: &'a dyn Gauge,
    pub(crate) samples: &'a [Sample],
    pub(crate) sides: Sides,
    pub(crate) start_ns: u64,
    /// When the last request was due; before the planned end if the run was interrupted.
    pub(crate) end_ns: u64,
}

impl Summary<'_> {
    /// Merges the records and decides whether the run is valid.
    pub(crate) fn outcome(&self, records: &[GeneratorRecords]) -> OpenOutcome {
        let plan = &self.prepared.plan;
        let merged = |pick: fn(&GeneratorRecords) -> &Times| {
            let mut sum = new_times();
            for records in records {
                // All histograms have the same bounds, so this cannot fail.
                let _ = sum.add(pick(records));
            }
            sum
        };
        let send_lag = merged(|records| &records.send.lag);
        let transmit = merged(|records| &records.send.transmit);
        let totals = Totals::of(records);
        let Totals { accounts, answers, .. } = totals;
        let (starved, disturbance) = (self.starved(), self.disturbance());
        let reasons = self.reasons(&totals, &send_lag, &transmit);
        let first_answers = merged(|records| &records.receive.service);
        let (service, accept, requests, connections) = match &self.prepared.load {
            Load::Standing(_) => (first_answers, new_times(), answers, plan.connections),
            Load::Churn(churn, pool) => {
                let requests = answers * u64::from(churn.transactions);
                let most = pool.iter().map(ChurnConnections::most_seen).sum();
                (merged(|records| &records.receive.requests), first_answers, requests, most)
            }
        };
        let measured_s = self.measured_ns() as f64 / 1e9;
        OpenOutcome {
            service,
            transmit,
            turnaround: merged(|records| &records.receive.turnaround),
            receive_lag: merged(|records| &records.receive.receive_lag),
            accept,
            send_lag,
            accounts,
            offered_rate: accounts.scheduled as f64 / measured_s,
            throughput: answers as f64 / measured_s,
            starved,
            disturbance,
            reopened: totals.reopened,
            server: self.server_use(requests),
            connections,
            remarks: self.remarks(&accounts, records),
            reasons,
        }
    }

    /// Returns why the run is not valid.
    fn reasons(&self, totals: &Totals, send_lag: &Times, transmit: &Times) -> Vec<String> {
        let plan = &self.prepared.plan;
        let mut reasons = plan.tolerance.judge(&Evidence {
            lag: Percentiles::of(send_lag),
            transmit: Percentiles::of(transmit),
            accounts: totals.accounts,
            hurried: totals.hurried,
            starved: self.starved(),
            faults: totals.faults.clone(),
            disturbance: self.disturbance(),
            interval_us: 1e6 * plan.generators.len() as f64 / plan.course.rate,
        });
        if totals.cut_short > 0 {
            reasons
                .push(format!("{} connections ended before their last answer", totals.cut_short));
        }
        if !totals.accounts.balance() {
            let accounts = totals.accounts;
            reasons.push(format!("the records do not balance: {accounts:?}; report this as a bug"));
        }
        reasons
    }

    /// Returns what a reader of valid figures has to know.
    fn remarks(&self, accounts: &Accounts, records: &[GeneratorRecords]) -> Vec<String> {
        let mut remarks: Vec<String> = unanswered(accounts).into_iter().collect();
        remarks.extend(self.silence(records));
        remarks.extend(unjudged(&self.prepared.plan.client, &self.borders()));
        remarks
    }

    /// Returns the disturbance by other work in the measured period.
    fn disturbance(&self) -> Disturbance {
        disturbance(&self.borders(), self.sides)
    }

    /// Returns the borders in the measured period.
    fn borders(&self) -> Vec<Border> {
        self.measured().iter().map(|sample| sample.border.clone()).collect()
    }

    /// Returns the first and the last sample of the measured period.
    fn ends(&self) -> Option<(&Sample, &Sample)> {
        let measured = self.measured();
        Some((measured.first()?, measured.last()?))
    }

    /// Returns the samples of the measured period, both ends included.
    fn measured(&self) -> &[Sample] {
        let from_ns = self.start_ns + self.prepared.plan.course.measure_from_ns();
        let first = self.samples.iter().position(|sample| sample.server.at_ns >= from_ns);
        first.map_or(&[], |first| &self.samples[first..])
    }

    /// Returns the length of the measured period.
    fn measured_ns(&self) -> u64 {
        let from_ns = self.start_ns + self.prepared.plan.course.measure_from_ns();
        self.end_ns.saturating_sub(from_ns).max(1)
    }

    fn server_use(&self, requests: u64) -> ServerUse {
        let Some((from, to)) = self.ends() else { return ServerUse::default() };
        let (measured_ns, cpus) = (self.measured_ns(), self.gauge.cpus());
        ServerUse::between(&from.server, &to.server, measured_ns, requests as f64, cpus)
    }

    /// Returns the share of their CPUs that the generators' threads did not get in the measured
    /// period. A sender is always busy, so it fills its CPU, together with the receiver if they
    /// share one.
    fn starved(&self) -> f64 {
        let Some((from, to)) = self.ends() else { return 0.0 };
        let elapsed_ns = to.server.at_ns.saturating_sub(from.server.at_ns).max(1) as f64;
        let senders = self.prepared.plan.generators.len() as f64;
        let used_ns = to.generators_ns.saturating_sub(from.generators_ns) as f64;
        (1.0 - used_ns / elapsed_ns / senders).max(0.0)
    }

    /// Returns the longest time without any answer, if it is long.
    fn silence(&self, records: &[GeneratorRecords]) -> Option<String> {
        let course = &self.prepared.plan.course;
        let (mut due, mut came) = (Bins::new(course), Bins::new(course));
        for records in records {
            due.merge(&records.send.bins);
            came.merge(&records.receive.bins);
        }
        silence(course, &due, &came, self.end_ns.saturating_sub(self.start_ns))
    }
}

//! How a load is divided among the processes that load, and how what they measured becomes one
//! result again.

use serde::{Deserialize, Serialize};

use super::control::{Control, ROOT, gather_values};
use crate::error::{Error, Result};
use crate::figures::{Times, decode, encode};
use crate::results::{Accounts, Histograms};

/// What one process has to do.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Share {
    /// At least 1.
    pub(crate) connections: usize,
    /// Per second, at least 1; nothing where the whole load has no rate.
    pub(crate) rate: Option<f64>,
}

/// Divides a load among so many processes: connections as evenly as whole numbers allow, the
/// first ones taking one more, and the rate in proportion, so that all connections are as busy.
pub(crate) fn divide(whole: Share, processes: usize) -> Result<Vec<Share>> {
    if processes == 0 {
        let remedy = "start at least two processes: mpirun -N 1 --host SERVER,CLIENT,...";
        return Err(Error::setup("there is no process that could load the server", remedy));
    }
    if whole.connections < processes {
        return Err(Error::setup(
            format!("{} connections are too few for {processes} processes", whole.connections),
            "give each at least one connection, or start fewer processes",
        ));
    }
    let (each, over) = (whole.connections / processes, whole.connections % processes);
    let share = |process| {
        let connections = each + usize::from(process < over);
        let part = connections as f64 / whole.connections as f64;
        Share { connections, rate: whole.rate.map(|rate| rate * part) }
    };
    let shares: Vec<Share> = (0..processes).map(share).collect();
    // Written so that what is no number is refused as well.
    if !shares.iter().all(|share| share.rate.is_none_or(|rate| rate >= 1.0)) {
        return Err(Error::setup(
            format!("the rate is too low for {processes} processes"),
            "give each at least one per second, or start fewer processes",
        ));
    }
    Ok(shares)
}

/// What one process, or all of them together, measured at one point.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Measured {
    pub(crate) accounts: Accounts,
    pub(crate) service: Option<Times>,
    pub(crate) send_lag: Option<Times>,
    pub(crate) transmit: Option<Times>,
    pub(crate) accept: Option<Times>,
    /// Why it is not valid, or what a reader should know.
    pub(crate) notes: Vec<String>,
    pub(crate) valid: bool,
}

/// How it travels.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Parcel {
    accounts: Accounts,
    histograms: Histograms,
    notes: Vec<String>,
    valid: bool,
}

impl Parcel {
    fn pack(measured: &Measured) -> Result<Parcel> {
        let text = |times: &Option<Times>| times.as_ref().map(encode).transpose();
        Ok(Parcel {
            accounts: measured.accounts,
            histograms: Histograms {
                service: text(&measured.service)?,
                send_lag: text(&measured.send_lag)?,
                transmit: text(&measured.transmit)?,
                accept: text(&measured.accept)?,
            },
            notes: measured.notes.clone(),
            valid: measured.valid,
        })
    }

    fn unpack(self) -> Result<Measured> {
        let times = |text: Option<String>| text.as_deref().map(decode).transpose();
        Ok(Measured {
            accounts: self.accounts,
            service: times(self.histograms.service)?,
            send_lag: times(self.histograms.send_lag)?,
            transmit: times(self.histograms.transmit)?,
            accept: times(self.histograms.accept)?,
            notes: self.notes,
            valid: self.valid,
        })
    }
}

impl Measured {
    /// Adds what another process measured: counts add up, and the whole is valid if both are.
    fn add(&mut self, other: Measured) -> Result<()> {
        let sum = &mut self.accounts;
        let Accounts { scheduled, answered, late, lost, refused, reset } = other.accounts;
        sum.scheduled += scheduled;
        sum.answered += answered;
        sum.late += late;
        sum.lost += lost;
        sum.refused += refused;
        sum.reset += reset;
        add_times(&mut self.service, other.service)?;
        add_times(&mut self.send_lag, other.send_lag)?;
        add_times(&mut self.transmit, other.transmit)?;
        add_times(&mut self.accept, other.accept)?;
        self.notes.extend(other.notes);
        self.valid &= other.valid;
        Ok(())
    }
}

fn add_times(sum: &mut Option<Times>, other: Option<Times>) -> Result<()> {
    match (sum.as_mut(), other) {
        (Some(sum), Some(other)) => sum.add(other).map_err(|error| {
            Error::setup(format!("cannot merge histograms: {error}"), "report this as a bug")
        }),
        (None, Some(other)) => {
            *sum = Some(other);
            Ok(())
        }
        (_, None) => Ok(()),
    }
}

/// Merges at rank 0 what the others measured. Rank 0, which serves and passes nothing, and the
/// others, which load, call it together after the end. Notes name the rank they come from. Only
/// rank 0 gets something.
pub(crate) fn gather(control: &dyn Control, own: Option<&Measured>) -> Result<Option<Measured>> {
    let parcel = own.map(Parcel::pack).transpose()?;
    let parcels = gather_values(control, &parcel)?;
    if control.rank() != ROOT {
        return Ok(None);
    }
    let mut whole = Measured { valid: true, ..Measured::default() };
    for (rank, parcel) in parcels.into_iter().enumerate() {
        let Some(parcel) = parcel else { continue };
        let mut measured = parcel.unpack()?;
        for note in &mut measured.notes {
            note.insert_str(0, &format!("rank {rank}: "));
        }
        whole.add(measured)?;
    }
    Ok(Some(whole))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::threads::on_threads;
    use super::*;
    use crate::figures::new_times;

    fn open(connections: usize, rate: f64) -> Share {
        Share { connections, rate: Some(rate) }
    }

    #[test]
    fn remainders_are_distributed() {
        let shares = divide(open(402, 8_040.0), 5).unwrap();
        let connections: Vec<usize> = shares.iter().map(|share| share.connections).collect();
        assert_eq!(connections, [81, 81, 80, 80, 80]);
        assert_eq!(shares[4].rate, Some(1_600.0));
        let closed = divide(Share { connections: 7, rate: None }, 2).unwrap();
        assert_eq!(closed[0], Share { connections: 4, rate: None });
    }

    #[test]
    fn too_little_for_all_is_refused() {
        assert!(divide(open(4, 1e6), 5).unwrap_err().to_string().contains("4 connections"));
        for rate in [4.0, 0.0, -1.0, f64::NAN] {
            assert!(divide(open(400, rate), 5).unwrap_err().to_string().contains("rate"), "{rate}");
        }
        assert!(divide(open(400, 8_000.0), 0).unwrap_err().to_string().contains("mpirun"));
    }

    fn accounts() -> impl Strategy<Value = Accounts> {
        let count = 0_u64..1 << 40;
        (count.clone(), count.clone(), count.clone(), count.clone(), count).prop_map(
            |(answered, late, lost, refused, reset)| Accounts {
                scheduled: answered + late + lost + refused + reset,
                answered,
                late,
                lost,
                refused,
                reset,
            },
        )
    }

    fn times() -> impl Strategy<Value = Option<Times>> {
        let values = prop::collection::vec((1_u64..1_000_000_000_000, 1_u64..1000), 0..50);
        prop::option::of(values).prop_map(|values| {
            let mut times = new_times();
            for (value, count) in values? {
                times.saturating_record_n(value, count);
            }
            Some(times)
        })
    }

    fn measured() -> impl Strategy<Value = Measured> {
        let rest = (prop::collection::vec("[a-z]{1,8}", 0..3), prop::bool::ANY);
        (accounts(), times(), times(), times(), times(), rest).prop_map(
            |(accounts, service, send_lag, transmit, accept, (notes, valid))| Measured {
                accounts,
                service,
                send_lag,
                transmit,
                accept,
                notes,
                valid,
            },
        )
    }

    fn count(times: &Option<Times>) -> u64 {
        times.as_ref().map_or(0, Times::len)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn shares_add_up(connections in 1_usize..20_000, processes in 1_usize..64) {
            prop_assume!(connections >= processes);
            let whole = open(connections, connections as f64 * 20.0);
            let shares = divide(whole, processes).unwrap();
            prop_assert_eq!(shares.len(), processes);
            prop_assert_eq!(shares.iter().map(|s| s.connections).sum::<usize>(), connections);
            let rate: f64 = shares.iter().filter_map(|share| share.rate).sum();
            prop_assert!((rate / (connections as f64 * 20.0) - 1.0).abs() < 1e-9);
            let (most, least) = (shares[0].connections, shares[processes - 1].connections);
            prop_assert!(least >= 1 && most - least <= 1);
        }

        #[test]
        fn nothing_is_lost_on_the_way(parts in prop::collection::vec(measured(), 2..6)) {
            let mut got = on_threads(parts.len() + 1, |control| {
                let own = control.rank().checked_sub(1).map(|at| &parts[at]);
                gather(control, own).unwrap()
            });
            let whole = got.remove(ROOT).unwrap();
            prop_assert!(got.iter().all(Option::is_none));
            let accounts = whole.accounts;
            let sum = |of: fn(&Measured) -> u64| parts.iter().map(of).sum::<u64>();
            prop_assert_eq!(accounts.scheduled, sum(|part| part.accounts.scheduled));
            prop_assert_eq!(
                accounts.scheduled,
                accounts.answered + accounts.late + accounts.lost + accounts.refused
                    + accounts.reset
            );
            prop_assert_eq!(count(&whole.service), sum(|part| count(&part.service)));
            prop_assert_eq!(count(&whole.send_lag), sum(|part| count(&part.send_lag)));
            prop_assert_eq!(count(&whole.transmit), sum(|part| count(&part.transmit)));
            prop_assert_eq!(count(&whole.accept), sum(|part| count(&part.accept)));
            let longest = |part: &Measured| part.service.as_ref().map(Times::max);
            prop_assert_eq!(longest(&whole), parts.iter().filter_map(longest).max());
            prop_assert_eq!(whole.valid, parts.iter().all(|part| part.valid));
            prop_assert_eq!(whole.notes.len() as u64, sum(|part| part.notes.len() as u64));
        }

        #[test]
        fn one_part_arrives_as_it_was(part in measured()) {
            prop_assert_eq!(Parcel::pack(&part).unwrap().unpack().unwrap(), part);
        }
    }
}

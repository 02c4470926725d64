//! Divides a load among processes.

use crate::error::{Error, Result};

/// The load of one process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Share {
    /// At least 1.
    pub(crate) connections: usize,
    /// Per second, at least 1; `None` if the whole load has no rate.
    pub(crate) rate: Option<f64>,
}

/// Divides a load among processes: connections as evenly as possible, the first ones with one more,
/// and the rate in proportion to the connections.
pub(crate) fn divide(whole: Share, processes: usize) -> Result<Vec<Share>> {
    if processes == 0 {
        let remedy = "start at least two processes: mpirun -N 1 --host SERVER,CLIENT,...";
        return Err(Error::setup("no process is left to load the server", remedy));
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
    // Written so that NaN is refused too.
    if !shares.iter().all(|share| share.rate.is_none_or(|rate| rate >= 1.0)) {
        return Err(Error::setup(
            format!("the rate is too low for {processes} processes"),
            "give each at least one per second, or start fewer processes",
        ));
    }
    Ok(shares)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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

    proptest! {
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
    }
}

//! Computes the order of the slots of a pass.

/// Returns the order in which the servers run in one pass of a round: A B, then B A, and so on. The
/// baseline comes first or last. The others rotate by round, so that none is always the farthest
/// from it.
pub(crate) fn slot_order(servers: usize, baseline: usize, round: usize, pass: usize) -> Vec<usize> {
    let mut others: Vec<usize> = (0..servers).filter(|&server| server != baseline).collect();
    if !others.is_empty() {
        let turns = round % others.len();
        others.rotate_left(turns);
    }
    let mut order = vec![baseline];
    order.append(&mut others);
    // Odd rounds begin with the reverse, so that no server is always measured earlier.
    if (round + pass) % 2 == 1 {
        order.reverse();
    }
    order
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn two_servers_run_a_b_b_a() {
        let order = |round| [slot_order(2, 0, round, 0), slot_order(2, 0, round, 1)].concat();
        assert_eq!(order(0), [0, 1, 1, 0]);
        assert_eq!(order(1), [1, 0, 0, 1]);
    }

    #[test]
    fn four_servers_mirror_and_rotate() {
        assert_eq!(slot_order(4, 1, 0, 0), [1, 0, 2, 3]);
        assert_eq!(slot_order(4, 1, 0, 1), [3, 2, 0, 1]);
        assert_eq!(slot_order(4, 1, 1, 1), [1, 2, 3, 0]);
        assert_eq!(slot_order(1, 0, 5, 1), [0]);
    }

    proptest! {
        #[test]
        fn every_pass_runs_every_server_once(
            servers in 1_usize..7, baseline in 0_usize..7, round in 0_usize..20, pass in 0_usize..6
        ) {
            let baseline = baseline % servers;
            let order = slot_order(servers, baseline, round, pass);
            let mut all = order.clone();
            all.sort_unstable();
            prop_assert_eq!(all, (0..servers).collect::<Vec<_>>());
            prop_assert!(order[0] == baseline || order[servers - 1] == baseline);
            let mut mirrored = slot_order(servers, baseline, round, pass + 1);
            mirrored.reverse();
            prop_assert_eq!(order, mirrored);
        }
    }
}

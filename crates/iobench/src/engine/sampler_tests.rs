//! Tests which slices and measurements count as disturbed.

use super::*;

const SECOND: u64 = 1_000_000_000;
const SIDES: Sides = Sides {
    client_cpus: 1,
    client_owned: true,
    client_alone: true,
    server_cpus: Some(1),
    server_alone: true,
    shared: false,
};

/// Borders every tenth of a second; the client is always busy and the server a third of the
/// time.
fn borders(change: impl Fn(u64, &mut Border)) -> Vec<Border> {
    let border = |number: u64| {
        let at_ns = number * SECOND / 10;
        let side = |run_ns: u64| SideTimes {
            ticks: CpuTicks { busy: run_ns / TICK_NS, steal: 0 },
            threads: vec![ThreadTimes { run_ns, delay_ns: 0 }],
            softirq_ns: 0,
        };
        let mut border = Border {
            at_ns,
            client: side(at_ns),
            server: side(at_ns / 3),
            used: Used { client_ns: None, server_ns: at_ns / 3 },
            own_ns: at_ns,
        };
        change(number, &mut border);
        border
    };
    (0..=10).map(border).collect()
}

fn judged(sides: Sides, change: impl Fn(u64, &mut Border)) -> (Disturbance, String) {
    let disturbance = disturbance(&borders(change), sides);
    (disturbance, disturbance.reasons(0.1).join("; "))
}

#[test]
fn a_quiet_machine_disturbs_nothing() {
    let (found, reasons) = judged(SIDES, |_, _| ());
    assert_eq!((found.slices, found.stolen, found.delayed, reasons.as_str()), (10, 0, 0, ""));
    assert_eq!((found.client_foreign, found.server_foreign), (Some(0.0), Some(0.0)));
}

#[test]
fn a_spinner_on_either_side_is_seen() {
    // The other program takes half of the client's CPU, and the rest of the server's.
    let (found, reasons) = judged(SIDES, |_, border| {
        border.own_ns /= 2;
        border.client.threads[0].run_ns /= 2;
    });
    assert!(found.client_foreign > Some(0.4), "{found:?}");
    assert!(reasons.contains("49 % of the client's CPUs"), "{reasons}");
    let (found, reasons) = judged(SIDES, |_, border| {
        border.server.ticks.busy = border.at_ns / TICK_NS;
    });
    assert!(found.server_foreign > Some(0.6) && found.client_foreign == Some(0.0), "{found:?}");
    assert!(reasons.contains("of the server's CPUs"), "{reasons}");
}

#[test]
fn waiting_counts_where_a_thread_owns_its_cpu() {
    let wait = |number: u64, border: &mut Border| {
        border.server.threads[0].delay_ns = number * 5_000_000;
    };
    let (found, reasons) = judged(SIDES, wait);
    assert_eq!(found.delayed, 10);
    assert!(reasons.contains("10 of 10 slices"), "{reasons}");
    for sides in [Sides { server_alone: false, ..SIDES }, Sides { shared: true, ..SIDES }] {
        assert_eq!(judged(sides, wait).0.delayed, 0);
    }
    let (found, _) = judged(SIDES, |number, border| {
        wait(number, border);
        border.server.softirq_ns = number * 2_000_000;
    });
    assert_eq!(found.delayed, 0, "the kernel worked on the server's packets");
}

#[test]
fn a_wait_disturbs_all_slices_that_it_spans() {
    // The thread gets its CPU in the sixth slice, after 0.25 s.
    let found = findings(
        &borders(|number, border| {
            if number > 5 {
                border.server.threads[0].delay_ns = SECOND / 4;
            }
        }),
        SIDES,
        None,
    );
    let disturbed = |number: usize| found[number] == Finding::Delayed;
    assert_eq!((0..10).filter(|&number| disturbed(number)).collect::<Vec<_>>(), [3, 4, 5]);
}

#[test]
fn no_slice_counts_if_others_had_most_of_the_time() {
    // Every second slice shows a wait, and in the others the accounts do not show who ran: each
    // is as short as the kernel's ticks are long.
    let others = borders(|number, border| {
        border.at_ns = number * TICK_NS;
        border.server.ticks.busy = number;
        border.server.threads[0].delay_ns = number / 2 * TICK_NS / 2;
        border.used.server_ns = 0;
    });
    assert_eq!(findings(&others, SIDES, None), [Finding::Delayed; 10]);
}

#[test]
fn what_uses_a_cpu_without_delay_disturbs_all_slices_that_a_burst_leaves() {
    // A third of the server's CPU, while the server does not work.
    let gaps = borders(|number, border| {
        border.server.ticks.busy += number * SECOND / 30 / TICK_NS;
    });
    assert_eq!(findings(&gaps, SIDES, None), [Finding::Delayed; 10]);
    // The same time in a single slice, in which a thread had to wait.
    let burst = borders(|number, border| {
        if number > 4 {
            border.server.ticks.busy += 5;
            border.server.threads[0].delay_ns = SECOND / 20;
        }
    });
    let found = findings(&burst, SIDES, None);
    let clean = found.iter().filter(|finding| **finding == Finding::Clean).count();
    assert_eq!((found[4], clean), (Finding::Delayed, 9));
}

#[test]
fn cpus_of_both_sides_are_judged_together_where_threads_may_run_on_either() {
    let sides = Sides { shared: true, server_alone: false, ..SIDES };
    let spinner = |number: u64, border: &mut Border| {
        border.server.ticks.busy += number * SECOND / 20 / TICK_NS;
    };
    let (found, _) = judged(sides, spinner);
    assert_eq!(found.client_foreign, found.server_foreign);
    assert!(found.client_foreign > Some(0.2), "{found:?}");
}

#[test]
fn stolen_time_is_told_and_one_slice_in_ten_is_tolerated() {
    let steal = |from: u64| {
        move |number: u64, border: &mut Border| {
            border.client.ticks.steal = number.saturating_sub(from);
        }
    };
    let (found, reasons) = judged(SIDES, steal(9));
    assert_eq!((found.stolen, reasons.as_str()), (1, ""));
    assert!(judged(SIDES, steal(8)).1.contains("the host took time in 2"));
}

#[test]
fn what_may_run_on_unknown_cpus_is_not_judged() {
    let client = Sides { client_owned: false, client_alone: false, ..SIDES };
    let sides = Sides { server_cpus: None, server_alone: false, ..client };
    let (found, reasons) = judged(sides, |number, border| {
        border.own_ns = 0;
        border.client.threads[0].delay_ns = number * SECOND;
    });
    assert_eq!((found.client_foreign, found.server_foreign), (None, None));
    assert_eq!(reasons, "");
}

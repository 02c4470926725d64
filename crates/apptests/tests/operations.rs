//! The short form of `cargo xtask operations`: in no scenario is an adapted server worse than the
//! stock one, but for a limit that docs/nginx.md names.

use megapipe_apptests::operations::{Extent, Program, run};

/// Scenario and variant of what may be worse, because the design has it so.
const KNOWN: [[&str; 2]; 2] = [
    // The queue of a CPU is served by one worker, whether that is full or not.
    ["worker_connections exhausted, 2 workers, clients of one CPU", "uring"],
    ["worker_connections exhausted, 2 workers, clients of one CPU", "epoll"],
];

fn check(program: Program) {
    let table = run(program, Extent::Quick, "", |line| println!("{line}"));
    println!("{}", table.text());
    assert_eq!(table.without_comparison(), [""; 0]);
    let is_known = |scenario: &str, variant: &str| KNOWN.contains(&[scenario, variant]);
    let worse = table.worse().into_iter().filter(|worse| !is_known(&worse.scenario, worse.variant));
    assert_eq!(worse.map(|worse| worse.to_string()).collect::<Vec<String>>(), [""; 0]);
}

#[test]
fn nginx_on_the_channel_is_never_worse_than_stock() {
    check(Program::Nginx);
}

#[test]
fn memcached_on_the_channel_is_never_worse_than_stock() {
    check(Program::Memcached);
}

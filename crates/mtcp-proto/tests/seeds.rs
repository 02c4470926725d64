//! Two stacks on a bad network, thousands of times: each seed is another network, other settings,
//! other applications. `MTCP_SEEDS=FIRST..LAST` (or one number) chooses the seeds.

mod simulator;

use simulator::report;

/// How many seeds run unless told otherwise.
const SEEDS: u64 = 10_000;

fn chosen() -> (u64, u64) {
    let Ok(words) = std::env::var("MTCP_SEEDS") else { return (0, SEEDS) };
    let number = |word: &str| {
        word.parse::<u64>().unwrap_or_else(|_| panic!("MTCP_SEEDS={words}: {word} is no number"))
    };
    match words.split_once("..") {
        Some((first, last)) => (number(first), number(last)),
        None => (number(&words), number(&words) + 1),
    }
}

#[test]
fn seeds_run() {
    let (first, last) = chosen();
    let counters = report::run_all(first, last, |_| ());
    for (name, count) in counters.entries() {
        println!("{name}: {count}");
    }
    if last - first >= SEEDS {
        let silent: Vec<_> = counters
            .entries()
            .filter(|&(name, count)| count == 0 && !NEVER.contains(&name))
            .collect();
        assert!(silent.is_empty(), "in all these runs there was no {silent:?}");
    }
}

/// What these networks do not provoke.
const NEVER: &[&str] = &["keepalive_probes", "drop_not_ours", "drop_other_core", "drop_table_full"];

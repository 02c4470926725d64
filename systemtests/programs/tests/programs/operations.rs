//! Test of the quick form of `cargo xtask operations`: in no scenario is an adapted server worse
//! than the stock one, except by the limits that its documentation names.

use systemtests_programs::operations::{Extent, Program, run};

fn check(program: Program) {
    let table = run(program, Extent::Quick, "", |line| println!("{line}"));
    println!("{}", table.text());
    assert_eq!(table.without_comparison(), [""; 0]);
    let worse = table.worse().into_iter().filter(|worse| !worse.is_limit);
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

#[test]
fn redis_on_the_channel_is_never_worse_than_stock() {
    check(Program::Redis);
}

//! Tests of the answers to wrong command lines of `cargo xtask`.

use std::process::Command;
use testkit::{Refusal, assert_refusals, refusal};

const ROWS: &[Refusal<'_>] = &[
    refusal("tests", 2, ["`tests`", "there is no command", "use one of: test, setup"]),
    refusal("test quickly", 1, ["`quickly`", "has no option", "--help"]),
    refusal("test --only nothing", 1, ["`nothing`", "there is no step", "test --list"]),
    refusal("doc all", 1, ["`all`", "is too much", "--help"]),
    refusal("fuzz 0", 1, ["`0`", "is no number of", "seconds from 1 to 86400"]),
    refusal("fuzz 1 nothing", 1, ["`nothing`", "there is no fuzz target", "use one of"]),
    refusal("soak 1h", 1, ["`1h`", "is no number of", "minutes from 1 to 10000"]),
    refusal("soak 1 sea", 1, ["`sea`", "there is no part", "use one of channel, runtime"]),
    refusal("nginx --port none", 1, ["`none`", "is no port", "use 0 to 65535"]),
    refusal("nginx --config", 1, ["--config", "needs a value", "usage: cargo xtask nginx"]),
    refusal(
        "memcached --fast",
        1,
        ["`--fast`", "unknown argument", "usage: cargo xtask memcached"],
    ),
    refusal("operations apache", 1, ["`apache`", "unknown argument", "[nginx|memcached|redis]"]),
    refusal("programs redis", 1, ["`redis`", "unknown argument", "[fable|mtcp]"]),
    refusal("kernels --kernel 2.4", 1, ["`2.4`", "unknown kernel", "--kernel NAME-OR-DIR"]),
    refusal("kernels --accel vmx", 1, ["`vmx`", "unknown accelerator", "--accel kvm|tcg"]),
    refusal("source", 1, ["``", "wrong arguments", "usage: cargo xtask source PACKAGE"]),
];

#[test]
fn wrong_command_lines_are_answered_with_cause_and_remedy() {
    assert_refusals("xtask", || Command::new(env!("CARGO_BIN_EXE_xtask")), ROWS);
}

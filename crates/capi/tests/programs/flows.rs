//! Flows in C: over foreign names, which need nothing, and over the name daemon.

use super::build::{Compiler, Linking, Program, directory};
use super::run::{DRIVERS, run};
use super::{STRICT, test_program};

const SANITIZED: &[&str] = &["-fsanitize=address"];

#[test]
fn every_call_of_flows_does_what_the_header_says() {
    let program = test_program("xio_calls", Compiler::Gcc, SANITIZED);
    let said = run(&mut program.command(), "xio_calls");
    assert!(said.contains("all is well"), "{said}");
}

#[test]
fn waiting_for_flows_does_what_the_header_says() {
    let program = test_program("xio_waiting", Compiler::Gcc, SANITIZED);
    for driver in DRIVERS {
        let said = run(program.command().env("MEGAPIPE_DRIVER", driver), "xio_waiting");
        assert!(said.contains("all is well"), "{said}");
    }
}

#[test]
fn the_header_of_flows_is_cpp17() {
    let source = directory().join("tests/c/xio_usage.cpp");
    let flags = [&["-std=c++17"], STRICT].concat();
    let program = Program::compile(Compiler::Cpp, &source, &flags, Linking::Shared);
    run(&mut program.command(), "xio_usage.cpp");
}

#[test]
fn random_calls_of_flows_do_no_harm() {
    let program = test_program("xio_fuzz", Compiler::Gcc, SANITIZED);
    let seed = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    for round in 0..4 {
        let seed = seed.wrapping_add(round).to_string();
        let mut command = program.command();
        run(command.args([&seed, "4000"]), &format!("xio_fuzz {seed} 4000"));
    }
}

/// valgrind 3.19 takes what io_uring writes into memory for nothing, so this is epoll's.
#[test]
fn valgrind_finds_nothing_in_flows() {
    for name in ["xio_calls", "xio_waiting"] {
        let program = test_program(name, Compiler::Gcc, &[]);
        let mut command = program.valgrind();
        run(command.env("MEGAPIPE_DRIVER", "epoll"), &format!("{name}, valgrind"));
    }
}

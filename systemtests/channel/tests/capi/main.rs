//! Tests the C library with programs: compiled by several compilers, linked against the library
//! that cargo builds, and run over both drivers; and that headers and manual pages match the
//! sources.

mod build;
mod clients;
mod coroutines;
mod examples;
mod flows;
mod generated;
mod run;
mod stacks;

use build::{Compiler, Linking, Program};
use run::{DRIVERS, run};

const STRICT: &[&str] = &["-Wall", "-Wextra", "-Werror", "-pedantic"];

/// A test program of `tests/c`, in plain C11.
fn test_program(name: &str, compiler: Compiler, more: &[&str]) -> Program {
    let source = build::source(&format!("{name}.c"));
    let flags = [&["-std=c11", "-g", "-pthread"], STRICT, more].concat();
    Program::compile(compiler, &source, &flags, Linking::Shared)
}

#[test]
fn sizes_and_offsets_are_as_published() {
    for compiler in [Compiler::Gcc, Compiler::Clang] {
        let abi = test_program("abi", compiler, &[]);
        let said = run(&mut abi.command(), "abi");
        assert_eq!(said.trim(), format!("megapipe {}", env!("CARGO_PKG_VERSION")));
    }
}

#[test]
fn the_header_is_cpp17() {
    let source = build::source("usage.cpp");
    let flags = [&["-std=c++17"], STRICT].concat();
    let program = Program::compile(Compiler::Cpp, &source, &flags, Linking::Shared);
    for driver in DRIVERS {
        run(program.command().env("MEGAPIPE_DRIVER", driver), "usage.cpp");
    }
}

/// Compiled with the oldest standards that compilers still offer, in strict mode.
#[test]
fn the_headers_are_c89_and_cpp98() {
    let text = "#include <megapipe.h>\n#include <xio.h>\n#include <mtcp.h>\n\
                int main(void) { return 0; }\n";
    let directory = tempfile::tempdir().unwrap();
    let languages =
        [("c", "-std=c89", ["gcc", "clang"]), ("cpp", "-std=c++98", ["g++", "clang++"])];
    for (suffix, standard, compilers) in languages {
        let source = directory.path().join("headers").with_extension(suffix);
        std::fs::write(&source, text).unwrap();
        for compiler in compilers {
            let mut command = std::process::Command::new(compiler);
            command.args([standard, "-pedantic-errors", "-Wall", "-Wextra", "-Werror", "-c", "-I"]);
            command.arg(build::directory().join("include")).arg(&source);
            Program::link(command);
        }
    }
}

#[test]
fn every_call_does_what_the_header_says() {
    let programs =
        ["calls", "transfers", "sockets", "messages", "datagrams", "endings", "limits", "leaving"];
    for name in programs {
        let program = test_program(name, Compiler::Gcc, &["-fsanitize=address"]);
        for driver in DRIVERS {
            let said = run(program.command().env("MEGAPIPE_DRIVER", driver), name);
            assert!(said.contains("all is well"), "{said}");
        }
    }
}

#[test]
fn the_static_library_serves_as_well() {
    let source = build::source("transfers.c");
    let flags = [&["-std=c11", "-pthread"], STRICT].concat();
    for linking in [Linking::Static, Linking::FullyStatic] {
        let program = Program::compile(Compiler::Clang, &source, &flags, linking);
        run(&mut program.command(), "transfers, static");
    }
}

#[test]
fn random_calls_do_no_harm() {
    let program = test_program("fuzz", Compiler::Gcc, &["-fsanitize=address"]);
    let seed = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    for round in 0..4 {
        for driver in DRIVERS {
            let seed = seed.wrapping_add(round).to_string();
            let mut command = program.command();
            command.env("MEGAPIPE_DRIVER", driver).args([&seed, "4000"]);
            run(&mut command, &format!("fuzz {seed} 4000 with MEGAPIPE_DRIVER={driver}"));
        }
    }
}

#[test]
fn only_the_calls_are_exported_and_each_has_its_version() {
    let output = std::process::Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(build::shared_library())
        .output()
        .expect("nm: install the package binutils");
    let listed = String::from_utf8(output.stdout).unwrap();
    let mut names: Vec<&str> = listed.lines().filter_map(|line| line.rsplit(' ').next()).collect();
    names.retain(|name| !["MEGAPIPE_0.1", "MTCP_0.1", "XIO_0.1"].contains(name));
    assert!(names.len() > 50, "{listed}");
    let headers = [
        ("mp_", "megapipe.h", "@@MEGAPIPE_0.1"),
        ("mtcp_", "mtcp.h", "@@MTCP_0.1"),
        ("x", "xio.h", "@@XIO_0.1"),
    ];
    let headers = headers.map(|(start, file, version)| {
        let path = build::directory().join("include").join(file);
        (start, std::fs::read_to_string(path).unwrap(), version)
    });
    for name in names {
        let of = headers.iter().find(|(start, ..)| name.starts_with(start));
        let (_, header, version) = of.unwrap_or_else(|| panic!("{name} is of no header"));
        let call = name.strip_suffix(version).unwrap_or_else(|| panic!("{name}"));
        assert!(header.contains(&format!("{call}(")), "{call} is not in its header");
    }
}

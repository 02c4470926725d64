//! Tests the calls of a C program, and programs that `mtcp run` does not support.

use crate::support::{KERNEL, Site, succeed};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

fn compile(site: &Site, source: &str, options: &[&str]) -> PathBuf {
    let program = site.path("program");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/c").join(source);
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]).args(options);
    compiler.arg("-o").arg(&program).arg(source);
    assert!(compiler.status().expect("cc runs").success(), "{compiler:?}");
    program
}

/// Starts an echo server of the kernel in the client's namespace; returns its port. It runs as long
/// as the test.
fn echo_server(site: &Site) -> u16 {
    let listener = site.client.run(|| TcpListener::bind((KERNEL, 0)).expect("a free port"));
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                let mut room = [0; 4096];
                while let Ok(bytes @ 1..) = stream.read(&mut room) {
                    if stream.write_all(&room[..bytes]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

#[test]
fn calls_do_what_the_kernel_does() {
    for (device, options) in [("packet", &[][..]), ("xdp", &[]), ("packet", &["--complete"])] {
        let site = Site::new(device);
        // The program connects from 10.9.0.2, on the interface that is called `server`.
        let settings = format!(
            "[device]\nkind = \"{device}\"\ninterface = \"server\"\n\
             [address]\nlist = [\"10.9.0.2/24\"]\n"
        );
        std::fs::write(site.path("calls.toml"), settings).expect("it is written");
        let program = compile(&site, "calls.c", &[]);
        let port = echo_server(&site);
        let program = program.to_str().expect("it is text");
        let mut command = site.under_stack("calls", options, program);
        command.args([KERNEL, &port.to_string()]);
        let output = succeed(&site.server, command);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "good\n", "{device} {options:?}");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(told.contains("stays with its parent"), "the refusal was told: {told}");
    }
}

/// Tests this with the kernel, with a stack that alone has its address, and with one that shares
/// it.
#[test]
fn a_program_connects_to_the_address_of_its_own_stack() {
    const OWN: &str = "10.9.0.2";
    let site = Site::new("packet");
    let program = compile(&site, "own.c", &[]);
    let mut plain = Command::new(&program);
    plain.arg("127.0.0.1");
    succeed(&site.server, plain);
    let run = |device: &str, shared: bool, options: &[&str]| {
        let ownership = if shared { "ownership = \"shared\"\n" } else { "" };
        let settings = format!(
            "[device]\nkind = \"{device}\"\ninterface = \"server\"\n\
             [address]\nlist = [\"{OWN}/24\"]\n{ownership}"
        );
        std::fs::write(site.path("own.toml"), settings).expect("it is written");
        let mut command = site.under_stack("own", options, program.to_str().expect("it is text"));
        command.arg(OWN);
        let output = succeed(&site.server, command);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "good\n", "{device} {options:?}");
    };
    run("packet", false, &[]);
    run("xdp", false, &[]);
    run("xdp", false, &["--complete"]);
    site.server.ip(&format!("addr add {OWN}/24 dev server"));
    run("xdp", true, &[]);
}

#[test]
fn a_static_program_is_refused() {
    let site = Site::new("packet");
    let program = compile(&site, "calls.c", &["-static"]);
    let mut command = site.under_stack("server", &[], program.to_str().expect("it is text"));
    let output = site.server.run(|| command.output()).expect("mtcp runs");
    assert!(!output.status.success());
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("is statically linked"), "{told}");
}

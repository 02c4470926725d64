//! Tests of the answers to wrong command lines and wrong configurations of `mtcp`.

use std::fs;
use std::process::Command;
use testkit::{Refusal, assert_refusals, refusal};

/// Configurations that are wrong, by the name of their file.
const FILES: &[(&str, &str)] = &[
    ("typo.toml", "[address]\nlist = [\"10.0.0.2/24\"]\n[engine]\ncore = 2\n"),
    ("range.toml", "[address]\nlist = [\"10.0.0.2/24\"]\n[tcp]\nmtu = 100\n"),
    ("choice.toml", "[address]\nlist = [\"10.0.0.2/24\"]\n[engine]\nmode = \"fast\"\n"),
    ("noname.toml", "[device]\nkind = \"xdp\"\n[address]\nlist = [\"10.0.0.2/24\"]\n"),
    ("noaddress.toml", "[device]\nkind = \"tap\"\n"),
    ("noprefix.toml", "[address]\nlist = [\"10.0.0.2\"]\n"),
    (
        "nodevice.toml",
        "[device]\nkind = \"xdp\"\ninterface = \"nosuch0\"\n\
                       [address]\nlist = [\"10.0.0.2/24\"]\n",
    ),
    ("memory.toml", "[device]\nkind = \"memory\"\n[address]\nlist = [\"10.0.0.2/24\"]\n"),
    ("loopback.toml", "[device]\nkind = \"memory\"\n[address]\nlist = [\"127.0.0.1/8\"]\n"),
    ("sound.toml", "[device]\nkind = \"tap\"\n[address]\nlist = [\"10.0.0.2/24\"]\n"),
];

const ROWS: &[Refusal<'_>] = &[
    refusal("check", 1, ["no configuration", "neither a file was named", "set MTCP_CONFIG"]),
    refusal("check none.toml", 1, ["none.toml", "cannot read the configuration", "--config"]),
    refusal("check typo.toml", 1, ["`core`", "unknown field", "docs/mtcp.toml shows"]),
    refusal("check range.toml", 1, ["range.toml:4: tcp.mtu is 100", "it must be", "576 to 65535"]),
    refusal("check choice.toml", 1, ["mode = \"fast\"", "unknown variant", "`paired`"]),
    refusal("check noname.toml", 1, ["device.interface is missing", "it must be", "\"eth0\""]),
    refusal("check noaddress.toml", 1, ["address.list is empty", "it must be", "10.0.0.2/24"]),
    refusal("check noprefix.toml", 1, ["address.list is 10.0.0.2;", "it must be", "fd00::2/64"]),
    refusal("check nodevice.toml", 1, ["nosuch0", "there is no interface", "`ip link` shows"]),
    refusal("check memory.toml", 1, ["\"memory\"", "connects two stacks of one program", "choose"]),
    refusal("check loopback.toml", 1, ["127.0.0.1", "is a loopback address", "choose one"]),
    refusal(
        "run --config none.toml true",
        1,
        ["none.toml", "cannot read the configuration", "name a file"],
    ),
    refusal(
        "run --config sound.toml nosuch-program",
        127,
        ["nosuch-program", "cannot execute", "install it"],
    ),
    refusal(
        "run --config sound.toml ./typo.toml",
        126,
        ["./typo.toml", "cannot execute", "chmod +x"],
    ),
    refusal("run", 2, ["<COMMAND>", "required arguments were not provided", "--help"]),
    refusal(
        "stat --socket /nosuch/stat",
        1,
        ["/nosuch/stat", "cannot ask", "check that its process runs"],
    ),
    refusal("stat --watch 0", 2, ["0 is not in", "is not in", "1..=86400"]),
    refusal("start", 2, ["'start'", "unrecognized subcommand", "--help"]),
];

#[test]
fn wrong_command_lines_are_answered_with_cause_and_remedy() {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, text) in FILES {
        fs::write(directory.path().join(name), text).expect("a file");
    }
    let library = testkit::process::preload_library("mtcp-preload");
    let prepare = || {
        let mut command = Command::new(testkit::process::program("mtcp"));
        command.current_dir(directory.path()).env_remove("MTCP_CONFIG");
        command.env("MTCP_PRELOAD", &library);
        command
    };
    assert_refusals("mtcp", prepare, ROWS);
    let with = |library: &std::path::Path| {
        let mut command = prepare();
        command.env("MTCP_PRELOAD", library);
        command
    };
    let row = refusal(
        "run --config sound.toml true",
        1,
        ["/nosuch/library.so", "cannot find the library", "cargo build -p mtcp-preload"],
    );
    assert_refusals("mtcp", || with("/nosuch/library.so".as_ref()), &[row]);
    let odd = directory.path().join("od d:.so");
    fs::write(&odd, "").expect("a file");
    let refused = ["od d:.so", "splits LD_PRELOAD", "set MTCP_PRELOAD to"];
    let row = refusal("run --config sound.toml true", 1, refused);
    assert_refusals("mtcp", || with(&odd), &[row]);
}

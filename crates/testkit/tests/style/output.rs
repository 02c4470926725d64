//! Finds macros that panic when standard output or standard error takes no data, and files that are
//! created without [`sys::output_file`]'s care for links and other users.

use crate::{crates, expect_none, lines_without_tests};

const MACROS: [&str; 5] = ["println!", "eprintln!", "print!", "eprint!", "dbg!"];

/// The crates that may use them: those that only tests run, and this project's build steps.
const EXEMPT: &[&str] = &[
    "callfuzz",
    "channelfuzz",
    "faults",
    "fuzz-targets",
    "fuzzkit",
    "hide-uring",
    "mtcp-packetdrill",
    "testkit",
    "xtask",
];

/// What creates a file, or opens one that may be there.
const CREATES: [&str; 4] = ["File::create(", "fs::write(", "create(true)", "create_new(true)"];

/// The files that may create files by themselves.
const CREATORS: &[(&str, &str)] = &[
    ("fabled/src/cluster/zone_secret.rs", "a secret, which must not exist"),
    ("fabled/src/daemon/socket.rs", "a lock and a trace beside the socket, without links"),
    ("fabled/src/owners/file.rs", "its own file beside the socket, without links"),
    ("iobench/src/access_log/log.rs", "a test"),
    ("iobench/src/apps/environment.rs", "settings of the kernel"),
    ("iobench/src/apps/files.rs", "in a scratch directory"),
    ("iobench/src/apps/nginx.rs", "in a scratch directory"),
    ("iobench/src/http/h2load.rs", "in a scratch directory"),
    ("iobench/src/network/namespace.rs", "settings of the kernel"),
    ("iobench/src/programs/lighttpd.rs", "in a scratch directory"),
    ("iobench/src/programs/mtcp.rs", "in a scratch directory"),
    ("iobench/src/programs/nginx.rs", "in a scratch directory"),
    ("iobench/src/programs/tls_proxy.rs", "in a scratch directory"),
    ("megapipe-rt/src/file.rs", "the program chooses how its files are opened"),
    ("mtcp/src/device/capture.rs", "a private file, without links, of this user"),
    ("sys/src/output_file.rs", "the place for all others"),
];

/// Returns the lines with one of the words, from 1 on, without comments and tests.
fn uses(text: &str, words: &[&str]) -> Vec<usize> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let is_use = |line: &str| {
        words.iter().any(|name| {
            let mut found = line.match_indices(name);
            found.any(|(at, _)| at == 0 || !is_name(line.as_bytes()[at - 1]))
        })
    };
    let lines = text.lines().take(lines_without_tests(text)).enumerate();
    let lines = lines.filter(|(_, line)| !line.trim_start().starts_with("//") && is_use(line));
    lines.map(|(index, _)| index + 1).collect()
}

/// Returns where code of a product has one of the words: the path below `crates/`, and the line.
fn used(words: &[&str]) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    for (directory, files) in crates() {
        let Some(name) = directory.strip_prefix("crates/") else { continue };
        if EXEMPT.contains(&name) {
            continue;
        }
        let is_code = |path: &str| {
            path.starts_with("src/")
                && path.ends_with(".rs")
                && !path.ends_with("tests.rs")
                && !path.contains("/tests/")
        };
        for (path, text) in files.iter().filter(|(path, _)| is_code(path)) {
            let lines = uses(text, words).into_iter();
            found.extend(lines.map(|line| (format!("{name}/{path}"), line)));
        }
    }
    found
}

#[test]
fn programs_print_without_panics() {
    let remedy = "panics without a reader; use cli::print for a command's result, otherwise \
                  sys::output";
    let found = used(&MACROS).into_iter();
    expect_none(found.map(|(path, line)| format!("crates/{path}:{line}: {remedy}")).collect());
}

#[test]
fn files_are_created_with_care_for_links_and_other_users() {
    let found = used(&CREATES);
    let is_listed = |path: &str| CREATORS.iter().any(|(listed, _)| *listed == path);
    let others = found.iter().filter(|(path, _)| !is_listed(path));
    let mut findings: Vec<String> = others
        .map(|(path, line)| format!("crates/{path}:{line}: use sys::output_file, or list it here"))
        .collect();
    let is_idle = |listed: &str| found.iter().all(|(path, _)| path != listed);
    let idle = CREATORS.iter().filter(|(listed, _)| is_idle(listed));
    findings.extend(idle.map(|(listed, _)| format!("crates/{listed}: creates no file")));
    expect_none(findings);
}

#[test]
fn uses_of_the_macros_are_found() {
    let uses = |text| uses(text, &MACROS);
    assert_eq!(uses("fn a() {\n    std::eprintln!(\"a\");\n}\n"), [2]);
    assert_eq!(uses("/// println!(\"a\");\nfn a() {\n    pprint!();\n}\n"), []);
    assert_eq!(uses("dbg!(1);\n#[cfg(test)]\nmod tests {\n    print!();\n}\n"), [1]);
}

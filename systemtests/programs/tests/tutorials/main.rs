//! Tests of the tutorials: runs the commands of each page of `docs/tutorials` as a reader does, and
//! compares what they print with what the page shows. `page` has the conventions for pages.

mod functions;
mod page;
mod session;

use page::Page;
use std::fs;
use std::path::Path;
use systemtests_programs::{root, target_dir};
use testkit::can_make_networks;

/// Programs that most pages call, with their packages.
const PROGRAMS: [(&str, &str); 2] = [("ip", "iproute2"), ("ncat", "ncat")];

/// Runs a page, unless a program is missing.
fn follow(name: &str, programs: &[(&str, &str)]) {
    if !can_make_networks(&format!("the tutorial {name}"), &[&PROGRAMS, programs].concat()) {
        return;
    }
    let text = fs::read_to_string(root().join("docs/tutorials").join(name)).expect("a page");
    let text =
        if target_dir() == root().join("target") { text } else { placed(&text, &target_dir()) };
    let run = |page| session::run(name, &page);
    Page::read(name, &text).and_then(run).unwrap_or_else(|error| panic!("{error}"));
}

/// The page for another target directory than `target`, which pages name.
fn placed(text: &str, target: &Path) -> String {
    text.replace("$PWD/target/", "target/").replace("target/", &format!("{}/", target.display()))
}

#[test]
fn nginx() {
    let programs = [("nginx", "nginx"), ("curl", "curl")];
    follow("nginx.md", &programs);
}

#[test]
fn memcached() {
    follow("memcached.md", &[]);
}

#[test]
fn c() {
    follow("c.md", &[("cc", "gcc"), ("patch", "patch")]);
}

#[test]
fn cpp() {
    follow("cpp.md", &[("c++", "g++")]);
}

#[test]
fn async_rust() {
    follow("async-rust.md", &[("curl", "curl")]);
}

#[test]
fn rust() {
    follow("rust.md", &[]);
}

#[test]
fn unmodified_programs() {
    let programs = [("redis-server", "redis-server"), ("redis-cli", "redis-tools")];
    follow("unmodified-programs.md", &programs);
}

#[test]
fn repeat_a_figure() {
    follow("repeat-a-figure.md", &[]);
}

/// Each page has a test above.
#[test]
fn no_page_is_forgotten() {
    let files = fs::read_dir(root().join("docs/tutorials")).expect("the directory");
    let names = files.map(|file| file.expect("a file").file_name().into_string());
    let is_page = |name: &Result<String, _>| name.as_ref().is_ok_and(|name| name.ends_with(".md"));
    let mut pages: Vec<_> = names.filter(is_page).collect();
    pages.sort();
    let tested = [
        "async-rust",
        "c",
        "cpp",
        "memcached",
        "nginx",
        "repeat-a-figure",
        "rust",
        "unmodified-programs",
    ];
    assert_eq!(pages, tested.map(|name| Ok(format!("{name}.md"))));
}

#[test]
fn a_page_follows_the_target_directory() {
    let text = "PATH=$PWD/target/debug:$PATH; target/release/mtcp";
    let placed = placed(text, Path::new("/my/target"));
    assert_eq!(placed, "PATH=/my/target/debug:$PATH; /my/target/release/mtcp");
}

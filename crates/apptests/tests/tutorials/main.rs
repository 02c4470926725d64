//! Tests of the tutorials: runs the commands of each page of `docs/tutorials` as a reader does, and
//! compares what they print with what the page shows. `page` has the conventions for pages.

mod page;
mod session;

use megapipe_apptests::{root, target_dir, xtask};
use page::Page;
use std::fs;
use std::path::Path;
use testkit::can_make_networks;

/// Programs that most pages call, with their packages.
const PROGRAMS: [(&str, &str); 2] = [("ip", "iproute2"), ("ncat", "ncat")];

/// Runs a page, unless a program is missing. `prepare` downloads and builds before, outside of the
/// namespaces, which have no network.
fn follow(name: &str, programs: &[(&str, &str)], prepare: impl FnOnce()) {
    if !can_make_networks(&format!("the tutorial {name}"), &[&PROGRAMS, programs].concat()) {
        return;
    }
    prepare();
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

fn nothing() {}

#[test]
fn nginx() {
    let programs = [("nginx", "nginx"), ("curl", "curl")];
    follow("nginx.md", &programs, || xtask(&["nginx", "--build"]).expect("the module is built"));
}

#[test]
fn memcached() {
    follow("memcached.md", &[], || xtask(&["memcached"]).expect("memcached is built"));
}

#[test]
fn c() {
    follow("c.md", &[("cc", "gcc"), ("patch", "patch")], nothing);
}

#[test]
fn cpp() {
    follow("cpp.md", &[("c++", "g++")], nothing);
}

#[test]
fn async_rust() {
    follow("async-rust.md", &[("curl", "curl")], nothing);
}

#[test]
fn rust() {
    follow("rust.md", &[], nothing);
}

#[test]
fn unmodified_programs() {
    let programs = [("redis-server", "redis-server"), ("redis-cli", "redis-tools")];
    follow("unmodified-programs.md", &programs, nothing);
}

#[test]
fn repeat_a_figure() {
    follow("repeat-a-figure.md", &[], nothing);
}

/// Each page has a test above.
#[test]
fn no_page_is_forgotten() {
    let pages = fs::read_dir(root().join("docs/tutorials")).expect("the directory");
    let name = |page: std::io::Result<fs::DirEntry>| page.expect("a page").file_name();
    let mut pages: Vec<_> = pages.map(|page| name(page).into_string()).collect();
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

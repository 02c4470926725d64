//! Tests that the pages have every variable of the environment, every directive of nginx's module
//! and every statistic of memcached: what no other crate could test.

use std::collections::BTreeSet;

use testkit::documented;

use crate::tidy::{File, files};

/// Prefixes of our variables.
const PREFIXES: [&str; 4] = ["FABLE_", "HIDE_", "MEGAPIPE_", "MTCP_"];
/// Variables of other programs in the page.
const FOREIGN: [&str; 2] = ["NO_COLOR", "XDG_RUNTIME_DIR"];
/// Literals that are no variables that anyone sets: a library of callfuzz's launcher.
const NO_VARIABLES: [&str; 1] = ["MTCP_LAUNCHER"];

fn repository() -> Vec<File> {
    files(&crate::root()).unwrap()
}

fn text_of(path: &str) -> String {
    repository().into_iter().find(|file| file.path == path).unwrap().text
}

/// The literals in a source that could name a variable; each test has its own with `_TEST_`.
fn variables(text: &str) -> impl Iterator<Item = &str> {
    let is_name = |word: &&str| {
        let part = PREFIXES.iter().find_map(|prefix| word.strip_prefix(prefix));
        let is_private = word.contains("_TEST_") && *word != "MEGAPIPE_TEST_BARRED";
        part.is_some_and(|rest| {
            !rest.is_empty() && rest.chars().all(|c| c.is_ascii_uppercase() || c == '_')
        }) && !is_private
            && !NO_VARIABLES.contains(word)
    };
    text.split('"').filter(is_name)
}

#[test]
fn literals_that_name_variables_are_found() {
    let text = r#"var("MTCP_LOG"); c"FABLE_NAME" "MEGAPIPE_" "MTCP_0.1" "FABLE_TEST_ALONE" "PATH""#;
    assert_eq!(variables(text).collect::<Vec<_>>(), ["MTCP_LOG", "FABLE_NAME"]);
}

#[test]
fn every_variable_of_the_environment_is_documented() {
    let is_source = |file: &&File| {
        let place = ["crates/", "apps/", "examples/"];
        let language = [".rs", ".c", ".h"];
        place.iter().any(|start| file.path.starts_with(start))
            && language.iter().any(|end| file.path.ends_with(end))
            && !file.path.starts_with("crates/xtask/src/doc/")
    };
    let files = repository();
    let used = files.iter().filter(is_source).flat_map(|file| variables(&file.text));
    let used: BTreeSet<String> = used.map(String::from).collect();
    let mut documented = documented("configuration.md", "Environment variables");
    documented.retain(|name| !FOREIGN.contains(&name.as_str()));
    assert_eq!(documented, used);
}

#[test]
fn every_directive_of_nginx_is_documented() {
    let source = text_of("apps/nginx/ngx_megapipe_module.c");
    let names = source.split("{ ngx_string(\"").skip(1).filter_map(|rest| rest.split('"').next());
    let names: BTreeSet<&str> = names.filter(|name| name.starts_with("megapipe_")).collect();
    let page = text_of("docs/nginx.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `megapipe_"));
    let rows: BTreeSet<String> =
        rows.filter_map(|row| Some(format!("megapipe_{}", row.split(' ').next()?))).collect();
    assert!(!names.is_empty());
    assert_eq!(rows, names.into_iter().map(String::from).collect());
}

#[test]
fn every_statistic_of_memcached_is_documented() {
    let source = text_of("apps/memcached/megapipe_workers.c");
    let names = |call: &str, prefix: &str| -> Vec<String> {
        let arguments = source.split(call).skip(1).filter_map(|rest| rest.split('"').nth(1));
        arguments.map(|name| format!("{prefix}{name}")).collect()
    };
    let all = [names("APPEND_STAT(", ""), names("APPEND_NUM_STAT(i, ", "N:")].concat();
    assert_eq!(documented("counters.md", "memcached"), all.into_iter().collect());
}

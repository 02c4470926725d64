//! Tests that the pages have every variable of the environment, every directive of nginx's module
//! and every statistic of memcached: what no other crate could test.

use std::collections::BTreeSet;
use std::fs;

use testkit::documented;

use super::book::tracked_files;

/// Prefixes of our variables.
const PREFIXES: [&str; 5] = ["FABLE_", "HIDE_", "IOBENCH_", "MEGAPIPE_", "MTCP_"];
/// Variables in the page of other programs, and of a shell script.
const FOREIGN: [&str; 4] = ["MEGAPIPE_INCLUDE", "MEGAPIPE_LIBRARY", "NO_COLOR", "XDG_RUNTIME_DIR"];
/// Literals that are no variables that anyone sets: a library of callfuzz's launcher, and what a
/// build script tells its crate. and what a
/// build script sets for its crate.
const NO_VARIABLES: [&str; 3] = ["IOBENCH_EXTERNAL_VERSIONS", "MEGAPIPE_VERSION", "MTCP_LAUNCHER"];

fn text_of(path: &str) -> String {
    fs::read_to_string(crate::root().join(path)).unwrap()
}

/// The literals in a source that could name a variable; each test has its own with `_TEST_`.
fn variables(text: &str) -> impl Iterator<Item = &str> {
    let is_name = |word: &&str| {
        let part = PREFIXES.iter().find_map(|prefix| word.strip_prefix(prefix));
        let is_private = word.contains("_TEST_");
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
    let is_source = |path: &&String| {
        let place = ["crates/", "systemtests/", "apps/", "examples/"];
        let language = [".rs", ".c", ".h"];
        place.iter().any(|start| path.starts_with(start))
            && language.iter().any(|end| path.ends_with(end))
            && !path.starts_with("crates/xtask/src/doc/")
    };
    let files = match tracked_files(&crate::root()) {
        Ok(files) => files,
        Err(error) if error.to_string().contains("cannot run git") => {
            let test = "every_variable_of_the_environment_is_documented";
            return testkit::skip(test, &error.to_string());
        }
        Err(error) => panic!("{error}"),
    };
    let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    let sources: Vec<String> = files.iter().filter(is_source).map(|file| text_of(file)).collect();
    let used = sources.iter().flat_map(|text| variables(text));
    let used: BTreeSet<String> = used.map(String::from).collect();
    let mut documented = documented("configuration.md", "Environment variables");
    let script = text_of("apps/nginx/config");
    let of_script = |name: &str| script.contains(&format!("${name}"));
    documented.retain(|name| !FOREIGN.contains(&name.as_str()) && !of_script(name));
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

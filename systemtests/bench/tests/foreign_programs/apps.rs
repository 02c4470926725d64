//! Tests of `iobench apps` with the distribution's nginx and memcached, each against itself.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;
use systemtests_bench::{iobench, run, run_undisturbed, stderr, wait_until};

const NGINX: &str = "/usr/sbin/nginx";
const MEMCACHED: &str = "/usr/bin/memcached";
const SHORT: [&str; 6] = ["--rounds", "3", "--duration", "200ms", "--connections", "16"];

fn assert_installed(program: &str) {
    assert!(Path::new(program).exists(), "{program} is missing (cargo xtask setup)");
}

/// Files that the program must remove, found by its process id.
fn leftovers(process: u32) -> Vec<PathBuf> {
    let mark = format!("-{process}-");
    let directories = [std::env::temp_dir(), PathBuf::from("/dev/shm")];
    let entries = directories.iter().filter_map(|path| std::fs::read_dir(path).ok()).flatten();
    entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.starts_with("iobench-") && name.contains(&mark)
        })
        .collect()
}

/// Fails if a row is invalid for another reason than a busy machine.
#[track_caller]
fn assert_served(document: &Value, servers: &[&str], cells: usize) {
    let rows = document["results"].as_array().unwrap();
    assert_eq!(rows.len(), servers.len() * cells, "{document:#}");
    for (index, row) in rows.iter().enumerate() {
        assert_eq!(row["subject"], servers[index % servers.len()]);
        assert!(row["throughput"].as_f64().is_some_and(|rate| rate > 0.0), "{row:#}");
        assert!(row["server_cpu_us"].as_f64().is_some_and(|cpu| cpu > 0.0), "{row:#}");
        for note in row["notes"].as_array().unwrap() {
            let note = note.as_str().unwrap();
            let harmless =
                ["clean slices", "pairs", "baseline", "busy", "share CPUs", "wrk itself"];
            assert!(harmless.iter().any(|known| note.contains(known)), "{note}");
        }
    }
}

#[test]
fn nginx_runs_against_itself_with_short_and_persistent_connections() {
    assert_installed(NGINX);
    let words = ["apps", "nginx", "--module", "none", "--workers", "1", "--requests", "1,inf"];
    let (status, document, printed) = run_undisturbed(&[&words[..], &SHORT].concat());
    assert_eq!(status, Some(0), "{printed}");
    assert_served(&document, &["epoll", "epoll-reuseport"], 2);
    assert_eq!(document["experiment"]["name"], "apps-nginx");
    assert_eq!(document["baseline"], "epoll");
    let rows = document["results"].as_array().unwrap();
    assert_eq!((&rows[0]["transactions"], &rows[2]["transactions"]), (&1.into(), &0.into()));
    assert_eq!(rows[0]["response_bytes"], 704);
    assert_eq!(rows[0]["workload"], "specweb");
    assert!(printed.contains("its workers were busy"), "{printed}");
    assert!(printed.contains("sendfile on, tcp_nopush on"), "{printed}");
}

#[test]
fn large_answers_of_the_yahoo_mix_are_right_on_all_cpus() {
    assert_installed(NGINX);
    let words = ["apps", "nginx", "--module", "none", "--mix", "yahoo/2", "--sendfile", "off"];
    let (status, document, printed) = run_undisturbed(&[&words[..], &SHORT].concat());
    assert_eq!(status, Some(0), "{printed}");
    let cells = document["results"].as_array().unwrap().len() / 2;
    assert_served(&document, &["epoll", "epoll-reuseport"], cells);
    assert!(printed.contains("2000 files"), "{printed}");
}

#[test]
fn memcached_runs_against_itself() {
    assert_installed(MEMCACHED);
    let words = ["apps", "memcached", "--stock", MEMCACHED, "--adapted", MEMCACHED];
    let more = ["--threads", "1", "--keys", "2000", "--requests", "1,inf", "--ending", "reset"];
    let (status, document, printed) = run_undisturbed(&[&words[..], &more, &SHORT].concat());
    assert_eq!(status, Some(0), "{printed}");
    assert_served(&document, &["stock", "megapipe"], 2);
    assert_eq!(document["experiment"]["name"], "apps-memcached");
    assert_eq!(document["results"][0]["workload"], "get:set 9:1");
}

#[test]
fn nothing_is_left_behind_after_an_interruption() {
    assert_installed(NGINX);
    let words = ["apps", "nginx", "--module", "none", "--workers", "1", "--rounds", "1000"];
    let mut child = iobench(&words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let masters = systemtests_bench::wait_for_children(child.id(), 2);
    let workers: Vec<(u32, u64)> = masters
        .iter()
        .flat_map(|(master, _)| systemtests_bench::wait_for_children(*master, 1))
        .collect();
    assert!(!leftovers(child.id()).is_empty());
    systemtests_bench::signal(child.id(), libc::SIGINT);
    let process = child.id();
    assert_eq!(systemtests_bench::wait(&mut child), Some(130));
    wait_until("all servers have ended", || {
        let all = masters.iter().chain(&workers);
        (!all.copied().any(systemtests_bench::is_alive)).then_some(())
    });
    assert_eq!(leftovers(process), Vec::<PathBuf>::new());
}

#[test]
fn workers_end_when_the_benchmark_is_killed() {
    assert_installed(NGINX);
    let words = ["apps", "nginx", "--module", "none", "--workers", "1", "--mix", "fixed:10"];
    let mut child = iobench(&[&words[..], &["--rounds", "1000"]].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let masters = systemtests_bench::wait_for_children(child.id(), 2);
    let workers: Vec<(u32, u64)> = masters
        .iter()
        .flat_map(|(master, _)| systemtests_bench::wait_for_children(*master, 1))
        .collect();
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("all servers have ended", || {
        let all = masters.iter().chain(&workers);
        (!all.copied().any(systemtests_bench::is_alive)).then_some(())
    });
    // A killed process cannot clean up; the test does.
    leftovers(child.id()).into_iter().for_each(|path| std::fs::remove_dir_all(path).unwrap());
}

#[track_caller]
fn assert_refused(words: &[&str], parts: &[&str]) {
    let output = run(words);
    let message = stderr(&output);
    assert_eq!(output.status.code(), testkit::refusal_status(&output), "{message}");
    for part in parts {
        assert!(message.contains(part), "no `{part}` in: {message}");
    }
}

#[test]
fn what_is_missing_or_wrong_is_told_with_its_remedy() {
    let absent = "/no/such/file";
    assert_refused(&["apps", "nginx", "--module", absent], &["cargo xtask nginx --build", absent]);
    assert_refused(&["apps", "nginx", "--nginx", absent], &["package nginx", absent]);
    let stock = ["apps", "memcached", "--stock", absent];
    assert_refused(&stock, &["cargo xtask memcached", absent]);
    assert_refused(&["apps", "redis", "--stock", absent], &["cargo xtask redis", absent]);
    let none = ["apps", "nginx", "--module", "none"];
    let with = |more: &[&'static str]| [&none[..], more].concat();
    assert_refused(&with(&["--baseline", "megapipe"]), &["`megapipe`", "epoll-reuseport"]);
    assert_refused(&with(&["--workers", "1000"]), &["1000 CPUs", "ask for 1 to"]);
    assert_refused(&with(&["--workers", "0"]), &["0 CPUs"]);
    assert_refused(&with(&["--mix", "large"]), &["specweb, yahoo, yahoo/2 or fixed:BYTES"]);
    assert_refused(&with(&["--requests", "0"]), &["or inf"]);
    let memcached = ["apps", "memcached", "--stock", MEMCACHED, "--adapted", MEMCACHED];
    let many = [&memcached[..], &["--keys", "1000000", "--memory-mb", "64"]].concat();
    assert_refused(&many, &["do not fit into 64 MB", "--memory-mb"]);
}

#[test]
fn built_programs_are_looked_for_in_the_directory_that_is_named() {
    let output = iobench(&[])
        .args(["apps", "nginx"])
        .env("MEGAPIPE_APPS", "/no/such/directory")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let wanted = "/no/such/directory/nginx/ngx_megapipe_module.so";
    assert!(stderr(&output).contains(wanted), "{}", stderr(&output));
}

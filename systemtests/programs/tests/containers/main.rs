//! Tests each program's main job in containers as the usual engines make them: without io_uring,
//! with a read-only root, as root with few capabilities and as a user without an entry in
//! `/etc/passwd`; and in a bare sandbox without `/proc` and `/sys`. `refusals.rs` runs the jobs
//! with one system call refused.

mod engine;
mod jobs;
mod refusals;

use engine::Container;
use jobs::JOBS;

/// Runs every job, prints a line for each, and fails with the output of those that were wrong.
#[track_caller]
fn assert_jobs(container: &Container) {
    let mut wrong = Vec::new();
    for job in JOBS {
        let output = container.run(job.script, &[]);
        let in_sandbox = job.in_sandbox.filter(|_| matches!(container, Container::Sandbox));
        let wanted = in_sandbox.unwrap_or(job.wanted);
        let missing: Vec<&str> =
            wanted.iter().copied().filter(|part| !output.contains(part)).collect();
        println!(
            "{container:?}: {}: {}",
            job.name,
            if missing.is_empty() { "ok" } else { "WRONG" }
        );
        if !missing.is_empty() {
            wrong.push(format!("{}: no {missing:?} in:\n{output}", job.name));
        }
    }
    assert!(wrong.is_empty(), "{container:?}: {}", wrong.join("\n\n"));
}

#[test]
fn programs_do_their_jobs_as_root_of_a_container() {
    assert_jobs(&Container::Engine { user: 0 });
}

#[test]
fn programs_do_their_jobs_as_an_unknown_user_of_a_container() {
    assert_jobs(&Container::Engine { user: 12345 });
}

#[test]
fn programs_do_their_jobs_in_a_sandbox_without_proc_and_sys() {
    assert_jobs(&Container::Sandbox);
}

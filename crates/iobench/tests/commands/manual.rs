//! Tests completions and manual pages with the programs that read them.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use crate::support::{run, scratch_file, stdout};

const COMMANDS: [&str; 8] =
    ["compare", "serve", "load", "doctor", "report", "diff", "completions", "man"];

#[test]
fn bash_completes_commands_and_options() {
    let output = run(&["completions", "bash"]);
    assert_eq!(output.status.code(), Some(0));
    // Does what bash does when a user types these words and the tabulator key.
    let ask = r#"
        complete_words() {
            COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
            _iobench iobench "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
            printf '%s ' "${COMPREPLY[@]}"
            printf '\n'
        }
        complete_words iobench repo
        complete_words iobench diff --thr
        complete_words iobench completions fi
    "#;
    let mut bash = Command::new("bash")
        .arg("--norc")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("bash is there");
    let script = stdout(&output) + ask;
    bash.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let answer = bash.wait_with_output().unwrap();
    assert!(answer.status.success());
    let lines = stdout(&answer);
    let lines: Vec<&str> = lines.lines().map(str::trim).collect();
    assert_eq!(lines, ["report", "--threshold", "fish"]);
}

#[test]
fn every_shell_gets_a_script_and_an_unknown_one_the_list() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = stdout(&run(&["completions", shell]));
        assert!(COMMANDS.iter().all(|command| script.contains(command)), "{shell}");
    }
    let unknown = run(&["completions", "cmd"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(crate::support::stderr(&unknown).contains("zsh"));
}

/// Returns the approximate text of a page: a line that begins with a dot is a request.
fn text_of(page: &str) -> String {
    let shown = |line: &&str| !line.starts_with('.') || line.starts_with(".SH");
    page.lines().filter(shown).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_page_has_the_sections_that_readers_look_for() {
    let page = stdout(&run(&["man"]));
    assert!(page.contains(".TH iobench 1"), "{page}");
    for section in ["NAME", "SYNOPSIS", "SUBCOMMANDS", "EXAMPLES", "FILES", "ENVIRONMENT"] {
        assert!(page.contains(&format!(".SH {section}\n")), "{section}");
    }
    assert!(page.contains(".SH \"EXIT STATUS\"\n"), "{page}");
    let text = text_of(&page);
    for command in COMMANDS {
        assert!(text.contains(&format!("iobench\\-{command}(1)")), "{command}: {text}");
    }
}

#[test]
fn every_command_has_a_page() {
    let directory = scratch_file().with_extension("man");
    let output = run(&["man", "--out", directory.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", crate::support::stderr(&output));
    for command in COMMANDS {
        let page = fs::read_to_string(directory.join(format!("iobench-{command}.1"))).unwrap();
        assert!(page.contains(&format!(".TH iobench-{command} 1")), "{page}");
        assert!(page.contains("EXIT STATUS"), "{page}");
    }
    for command in ["apps", "apps-nginx", "apps-memcached"] {
        let page = fs::read_to_string(directory.join(format!("iobench-{command}.1"))).unwrap();
        assert!(page.contains("apps"), "{page}");
    }
    let main = fs::read_to_string(directory.join("iobench.1")).unwrap();
    assert_eq!(main, stdout(&run(&["man"])));
    fs::remove_dir_all(&directory).unwrap();
    let output = run(&["man", "--out", "/proc/none"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(crate::support::stderr(&output).contains("choose a directory"));
}

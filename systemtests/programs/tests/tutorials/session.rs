//! Runs the script of a page in one bash, from the root of the workspace, in network and process
//! namespaces of its own: the ports that a page names are free, and no process remains.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::page::{Commands, OUTPUT, Page};
use systemtests_programs::root;
use testkit::process::{Guard, forget_package, wait};

/// Time limit of a page, for a page whose commands build what nothing has built before.
const TIME_LIMIT: Duration = Duration::from_secs(600);

/// The first line of the script, in the place of the title of the page.
const BEGIN: &str = "trap 'echo \"line $LINENO: status $?\"' ERR; ip link set lo up";

/// Follows the page: waits until the processes that it started have ended, all but this bash,
/// which is the first process of its namespace.
const END: &str = "
exec >\"$TUTORIAL_OUTPUT/end\" 2>&1
for _ in {1..600}; do
    processes=(/proc/[0-9]*)
    if ((${#processes[@]} == 1)); then exit; fi
    sleep 0.1
done
echo 'the page leaves processes:'
ps ax
exit 1
";

/// Runs a page and compares the output of each of its blocks; the error names page and line.
pub(crate) fn run(name: &str, page: &Page) -> Result<(), String> {
    let directory = tempfile::tempdir().expect("a directory");
    let [output, scratch] = ["output", "scratch"].map(|below| directory.path().join(below));
    let script = directory.path().join(name);
    fs::create_dir(&output).and_then(|()| fs::create_dir(&scratch)).expect("a directory");
    fs::write(&script, format!("{BEGIN}{}{END}", page.script)).expect("a file");
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "unshare", "--net", "--pid", "--fork", "--kill-child"]);
    command.args(["--mount-proc", "--", "bash", "-euo", "pipefail"]).arg(&script);
    forget_package(&mut command);
    command.env(OUTPUT, &output).env("TMPDIR", &scratch).env_remove("MEGAPIPE_DRIVER");
    // There is no network; the packages are those of this workspace, which are here.
    command.env("CARGO_NET_OFFLINE", "true");
    let log = fs::File::create(output.join("begin")).expect("a file");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).current_dir(root());
    let status = wait(&mut Guard::spawn(&mut command).0, TIME_LIMIT);
    if !status.success() {
        return Err(format!("{name}: {status}{}", last(&output, &page.blocks)));
    }
    for block in &page.blocks {
        let found = block.check(&printed(&output, &block.line.to_string()));
        found.map_err(|error| format!("{name}:{}: {error}", block.line))?;
    }
    let left = fs::read_dir(&scratch).expect("a directory").flatten().next();
    left.map_or(Ok(()), |left| Err(format!("{name}: the page leaves {}", left.path().display())))
}

fn printed(output: &Path, file: &str) -> String {
    let bytes = fs::read(output.join(file)).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The line and the output of the last block that began, and the output before and after all.
fn last(output: &Path, blocks: &[Commands]) -> String {
    let begun = |block: &&Commands| output.join(block.line.to_string()).exists();
    let line = blocks.iter().rfind(begun).map(|block| block.line.to_string());
    let parts = ["begin".to_string(), line.clone().unwrap_or_default(), "end".to_string()];
    let text = parts.iter().map(|part| printed(output, part)).collect::<String>();
    format!(" in the block at line {}\n{text}", line.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(text: &str) -> Result<(), String> {
        run("page.md", &Page::read("page.md", text)?)
    }

    #[test]
    fn a_page_that_is_wrong_fails_with_its_line() {
        let test = "a_page_that_is_wrong_fails_with_its_line";
        if !testkit::can_make_networks(test, &[("ip", "iproute2")]) {
            return;
        }
        let good = "# A\n\n```sh\nd=$(mktemp)\n```\nSave this as `$d`:\n```c\nx;\n```\n\
                    ```sh\ncat $d\nsleep 9 & kill $!\nrm $d\n```\n```text\nx;\n```\n";
        assert_eq!(outcome(good), Ok(()));
        for (from, to, errors) in [
            ("cat $d", "cat $d; false", ["in the block at line 10", "line 11: status 1"]),
            ("cat $d", "cat $d; echo $e", ["in the block at line 10", "line 11: e: unbound"]),
            ("rm $d", "true", ["page.md: the page leaves", "/scratch/tmp."]),
            ("\nx;\n```\n`", "\ny;\n```\n`", ["page.md:10: the page shows", "bash prints\ny;"]),
        ] {
            let error = outcome(&good.replace(from, to)).unwrap_err();
            assert!(errors.iter().all(|part| error.contains(part)), "{error}");
        }
    }
}

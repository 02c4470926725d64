//! Tests of the scripts in `apps/` with stand-ins for the programs that they call.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A directory with stand-ins, which come first on the PATH.
struct Stage {
    directory: tempfile::TempDir,
}

impl Stage {
    fn new(stand_ins: &[(&str, &str)]) -> Stage {
        let stage = Stage { directory: tempfile::tempdir().unwrap() };
        for (name, script) in stand_ins {
            stage.write(&format!("bin/{name}"), &format!("#!/bin/sh\n{script}\n"));
            let mode = fs::Permissions::from_mode(0o755);
            fs::set_permissions(stage.path(&format!("bin/{name}")), mode).unwrap();
        }
        stage
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
    }

    /// Runs a script of `apps/` in the directory.
    fn run(&self, script: &str, words: &[&str]) -> (bool, String) {
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap());
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut command = Command::new("sh");
        command.arg(root.join("apps").join(script)).args(words).current_dir(self.directory.path());
        command.env("PATH", path).env("FETCH_SOURCE_APT", self.path("etc"));
        let Output { status, stdout, stderr } = command.output().unwrap();
        (status.success(), String::from_utf8([stdout, stderr].concat()).unwrap())
    }
}

/// Acts as prove(1) for the test `t/NAME.t`: passes, skips, passes at the second attempt, fails, or
/// fails on the adapted server only. It counts its runs.
const PROVE: &str = r#"
echo run >>"$1.runs"
runs=$(wc -l <"$1.runs")
case $1 in
*pass.t) echo 'Result: PASS' ;;
*skip.t) echo 'skipped: no proxy'; echo 'Result: NOTESTS' ;;
*second.t) [ "$runs" = 2 ] ;;
*fail.t) false ;;
*worse.t) case $PWD in *stock) ;; *) echo 'not ok 7'; false ;; esac ;;
esac"#;

#[test]
fn memcacheds_suite_fails_for_what_is_worse_than_stock() {
    let stage = Stage::new(&[("prove", PROVE)]);
    for tree in ["stock", "megapipe"] {
        stage.write(&format!("{tree}/memcached"), "");
        stage.write(&format!("{tree}/testapp"), "");
        for test in ["pass", "skip", "second", "fail", "worse"] {
            stage.write(&format!("{tree}/t/{test}.t"), "");
        }
    }
    let tests = ["pass.t", "skip.t", "second.t", "fail.t"];
    let suite = |tests: &[&str]| stage.run("memcached/suite.sh", &[&["."], tests].concat());
    let (is_good, said) = suite(&tests);
    let row =
        |test: &str, stock: &str, adapted: &str| format!("{test:<32} {stock:<22} {adapted}\n");
    assert!(is_good, "{said}");
    assert!(said.contains(&row("pass.t", "passed", "passed")), "{said}");
    assert!(said.contains(&row("skip.t", "skipped", "skipped")), "{said}");
    assert!(said.contains(&row("second.t", "passed at try 2", "passed at try 2")), "{said}");
    assert!(said.contains(&row("fail.t", "failed", "failed")), "{said}");
    assert!(said.contains("memcached as it is: 2 passed, 1 failed, 1 skipped\n"), "{said}");
    assert!(said.contains("memcached adapted: 2 passed, 1 failed, 1 skipped\n"), "{said}");

    let (is_good, said) = suite(&["worse.t", "pass.t"]);
    assert!(!is_good, "{said}");
    assert!(said.contains("not ok 7") && said.contains("does not: worse.t;"), "{said}");
    assert!(said.contains("1 results of the unmodified server are of an earlier run"), "{said}");
    let runs = |test: &str| fs::read_to_string(stage.path(test)).unwrap().lines().count();
    assert_eq!([runs("stock/t/pass.t.runs"), runs("megapipe/t/pass.t.runs")], [1, 2]);
    assert_eq!(runs("stock/t/fail.t.runs"), 3);

    let (is_good, said) = suite(&["none.t"]);
    assert!(!is_good && said.contains("no test none.t"), "{said}");
}

/// Acts as apt-get(8): writes the file that dpkg-source unpacks, but only for one version.
const APT_GET: &str = r#"case "$*" in *p=1.2-8) touch p.dsc ;; *update) ;; *) false ;; esac"#;
const APT_CACHE: &str = r#"case $1 in
policy) echo '        500 http://a/debian x/main amd64 Packages' ;;
*) printf 'Package: p\nVersion: 1.1-1\n\nVersion: 1.2-8\n\nVersion: 1.2-9\n' ;;
esac"#;
const DPKG_QUERY: &str = r#"for name; do :; done; [ "$name" = p ] && echo "installed 1:1.2-9""#;
const DPKG_SOURCE: &str = r#"for tree; do :; done; mkdir "$tree""#;

/// Writes the archive of the upstream version, and finds no revision.
const APT_GET_UPSTREAM: &str = r#"case "$*" in
*update) ;;
*) mkdir p-1.2 && echo x >p-1.2/configure && tar -czf p_1.2.orig.tar.gz p-1.2; false ;;
esac"#;

#[test]
fn without_a_revision_the_upstream_archive_is_taken_if_its_checksum_is_known() {
    let stage = Stage::new(&[
        ("apt-get", APT_GET_UPSTREAM),
        ("apt-cache", APT_CACHE),
        ("dpkg-source", DPKG_SOURCE),
        ("sha256sum", "grep -qx 'known  p_1.2.orig.tar.gz'"),
    ]);
    stage.write("etc/sources.list", "deb http://a/debian x main\n");
    let fetch = |sum: &str| stage.run("fetch-source.sh", &["p", "src", "1.2", "x", sum]);
    let (is_good, said) = fetch("unknown");
    assert!(!is_good && said.contains("no source of p 1.2 could be fetched"), "{said}");
    let (is_good, said) = fetch("known");
    assert!(is_good && said.contains("without the distribution's changes"), "{said}");
    assert_eq!(fs::read_to_string(stage.path("src/p-1.2/configure")).unwrap(), "x\n");
}

#[test]
fn sources_come_from_the_archives_of_the_package() {
    let stage = Stage::new(&[
        ("apt-get", APT_GET),
        ("apt-cache", APT_CACHE),
        ("dpkg-query", DPKG_QUERY),
        ("dpkg-source", DPKG_SOURCE),
    ]);
    let lines = "# deb http://a x main\ndeb-src http://a x main\ndeb http://b/ x main\n\
                 deb [signed-by=/k arch=amd64] http://a/debian y z\n";
    stage.write("etc/sources.list", lines);
    let stanzas = "Types: deb deb-src\n# why\nURIs: http://a/debian\nSuites:\n x\n y\n\n\
                   Types: deb\nURIs: http://b\nSuites: y\n";
    stage.write("etc/sources.list.d/a.sources", stanzas);
    stage.write("etc/sources.list.d/a.save", lines);
    let fetch = |words: &[&str]| stage.run("fetch-source.sh", words);

    // The installed version is gone; the other one has the same upstream version.
    let (is_good, said) = fetch(&["p", "src"]);
    let tree = stage.path("src/p-1_1.2-9");
    assert!(is_good && said.contains("1.2-9 cannot be fetched"), "{said}");
    assert!(said.lines().any(|line| line == tree.to_str().unwrap()), "{said}");
    let written = |name: &str| fs::read_to_string(stage.path("src/apt/p/sources").join(name));
    let expected = "deb-src [signed-by=/k arch=amd64] http://a/debian y z\n";
    assert_eq!(written("sources.list").unwrap(), expected);
    let expected = "Types: deb-src\n# why\nURIs: http://a/debian\nSuites:\n x\n y\n\n";
    assert_eq!(written("a.sources").unwrap(), expected);
    assert!(written("a.save").is_err());

    // A complete tree is taken as it is, and the remains of an interrupted run are not.
    assert_eq!(fetch(&["p", "src"]), (true, format!("{}\n", tree.display())));
    fs::remove_file(stage.path("src/p-1_1.2-9.complete")).unwrap();
    let (is_good, said) = fetch(&["p", "src"]);
    assert!(is_good && said.contains("fetching p"), "{said}");

    // Another release of the same archives.
    fs::remove_dir_all(stage.path("etc")).unwrap();
    let lines =
        "deb [arch=amd64] http://a/debian x main\ndeb http://a/debian-security x-security main\n";
    stage.write("etc/sources.list", lines);
    let stanzas = "Types: deb\nURIs: http://a/debian\nSuites: x\n x-updates\nComponents: main\n\n\
                   Types: deb\nURIs: http://a/debian-security\nSuites: x-security\n";
    stage.write("etc/sources.list.d/a.sources", stanzas);
    let (is_good, said) = fetch(&["p", "other", "1.2", "y", ""]);
    assert!(is_good && said.contains("p 1.2-8"), "{said}");
    let written = |name: &str| fs::read_to_string(stage.path("other/apt/py/sources").join(name));
    let expected = "deb-src [arch=amd64] http://a/debian y main\n\
                    deb-src http://a/debian-security y-security main\n";
    assert_eq!(written("sources.list").unwrap(), expected);
    let expected = "Types: deb-src\nURIs: http://a/debian\nSuites: y\nComponents: main\n\n\
                    Types: deb-src\nURIs: http://a/debian-security\nSuites: y-security\n\n";
    assert_eq!(written("a.sources").unwrap(), expected);
    // Nothing else than what was tested; the stand-in downloads no archive of this checksum.
    let (is_good, said) = fetch(&["p", "third", "1.2", "y", "0123"]);
    assert!(!is_good && said.contains("p 1.2-8 is not the 1.2 that was tested"), "{said}");

    let (is_good, said) = fetch(&["p", "src", "1.1"]);
    assert!(!is_good && said.contains("offered: 1.2-9 1.2-8 1.1-1"), "{said}");
    let (is_good, said) = fetch(&["q", "src"]);
    assert!(!is_good && said.contains("the package q is not installed"), "{said}");
}

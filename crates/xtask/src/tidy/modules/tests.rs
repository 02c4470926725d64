use super::*;

/// Returns the violations in a crate `a` with these files, as `path: what`.
fn findings(files: &[(&str, &str)]) -> Vec<String> {
    let mut files: Vec<File> = files
        .iter()
        .map(|(path, text)| File { path: format!("crates/a/{path}"), text: text.to_string() })
        .collect();
    files.push(File { path: "README.md".to_string(), text: String::new() });
    let findings = check(&crates(&files));
    findings
        .iter()
        .map(|finding| {
            let path = finding.path.strip_prefix("crates/a/").unwrap_or(&finding.path);
            format!("{path}: {}", finding.what)
        })
        .collect()
}

const UNUSED: &str = "no `mod` declares this file";

#[test]
fn declared_files_pass() {
    let crate_files = [
        ("src/lib.rs", "//! A.\nmod b;\npub(crate) mod c;\n#[cfg(test)]\nmod tests;\n"),
        ("src/b.rs", "mod inner;\n"),
        ("src/b/inner.rs", "mod deep;\n"),
        ("src/b/inner/deep.rs", ""),
        ("src/c/mod.rs", "mod d;\n"),
        ("src/c/d.rs", ""),
        ("src/tests.rs", ""),
        ("tests/outside.rs", "not in src"),
    ];
    assert_eq!(findings(&crate_files), [""; 0]);
}

#[test]
fn undeclared_files_are_found() {
    let crate_files = [
        ("src/lib.rs", "//! A.\n// mod b;\nconst S: &str = \"mod c;\";\n"),
        ("src/b.rs", "mod inner;\n"),
        ("src/b/inner.rs", ""),
        ("src/c.rs", ""),
    ];
    let expected = ["src/b.rs", "src/b/inner.rs", "src/c.rs"];
    assert_eq!(findings(&crate_files), expected.map(|path| format!("{path}: {UNUSED}")));
}

#[test]
fn modules_of_a_module_do_not_lie_beside_it() {
    let crate_files =
        [("src/lib.rs", "//! A.\nmod b;\n"), ("src/b.rs", "mod c;\n"), ("src/c.rs", "")];
    assert_eq!(findings(&crate_files), [format!("src/c.rs: {UNUSED}")]);
}

#[test]
fn inline_modules_are_directories() {
    let crate_files = [
        ("src/lib.rs", "//! A.\nmod b { mod c; }\nmod d;\n"),
        ("src/b/c.rs", ""),
        ("src/b/d.rs", ""),
        ("src/d.rs", ""),
    ];
    assert_eq!(findings(&crate_files), [format!("src/b/d.rs: {UNUSED}")]);
}

#[test]
fn path_attributes_and_includes_count() {
    let crate_files = [
        (
            "src/lib.rs",
            "//! A.\n#[path = \"x/y.rs\"]\nmod b;\n\
             #[cfg_attr(loom, path = \"l.rs\")]\npub mod c;\ninclude!(\"table.rs\");\n",
        ),
        ("src/x/y.rs", "mod z;\n"),
        ("src/x/z.rs", "#[path = \"../up.rs\"]\nmod up;\n"),
        ("src/up.rs", ""),
        ("src/l.rs", ""),
        ("src/table.rs", ""),
    ];
    assert_eq!(findings(&crate_files), [""; 0]);
}

#[test]
fn every_target_is_a_root() {
    let crate_files = [
        ("Cargo.toml", "[[bin]]\nname = \"n\"\npath = \"src/named.rs\"\n"),
        ("src/main.rs", "//! A.\n"),
        ("src/bin/one.rs", "//! One.\n"),
        ("src/bin/two/main.rs", "//! Two.\nmod part;\n"),
        ("src/bin/two/part.rs", ""),
        ("src/named.rs", "//! Named.\n"),
    ];
    assert_eq!(findings(&crate_files), [""; 0]);
}

#[test]
fn a_crate_introduces_itself() {
    let silent = findings(&[("src/lib.rs", "mod b;\n"), ("src/b.rs", "")]);
    assert_eq!(silent, ["src/lib.rs: a crate without an introduction"]);
    assert_eq!(findings(&[("Cargo.toml", "")]), ["Cargo.toml: a crate without source"]);
}

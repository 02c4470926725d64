use super::*;

/// Returns the violations in a crate `a` with these files below `src`, and a root with these
/// modules.
fn cycles(modules: &str, files: &[(&str, &str)]) -> Vec<String> {
    let paths: Vec<String> = files.iter().map(|(path, _)| format!("src/{path}")).collect();
    let texts = files.iter().map(|(_, text)| *text);
    let mut crate_files: CrateFiles<'_> = paths.iter().map(String::as_str).zip(texts).collect();
    crate_files.insert("src/lib.rs", modules);
    let found = between_modules("a", &crate_files);
    found.into_iter().map(|finding| finding.what.replace("crates/a/src/", "")).collect()
}

const NONE: [&str; 0] = [];

#[test]
fn a_cycle_is_shown_with_an_example_for_each_edge() {
    let files = [
        ("b.rs", "use crate::c;\nfn f() { c::g(); crate::c::h(); }\n"),
        ("c.rs", "fn g() -> crate::b::B { todo!() }\n"),
        ("d.rs", "use crate::b::B;\n"),
    ];
    let expected = "import cycle of the modules of crate b, c\n    \
                    b -> c, as in b.rs:1: crate::c\n    \
                    c -> b, as in c.rs:1: crate::b::B";
    assert_eq!(cycles("mod b;\nmod c;\nmod d;\n", &files), [expected]);
}

#[test]
fn children_and_parents_may_use_each_other() {
    let files = [("b.rs", "use super::A;\nuse crate::f;\n")];
    assert_eq!(cycles("mod b;\nuse b::B;\nstruct A;\nfn f() { b::g() }\n", &files), NONE);
}

#[test]
fn re_exports_lead_to_the_module_that_has_the_item() {
    let files = [
        ("b.rs", "pub mod inner;\npub use inner::B;\nuse crate::C as D;\n"),
        ("b/inner.rs", "pub struct B;\n"),
        ("c.rs", "use crate::facade::E;\npub struct C;\n"),
    ];
    let root = "mod b;\nmod c;\npub use c::C;\nmod facade { pub use crate::b::B as E; }\n";
    let expected = "import cycle of the modules of crate b, c\n    \
                    b -> c, as in b.rs:3: crate::C\n    \
                    c -> b, as in c.rs:1: crate::facade::E";
    assert_eq!(cycles(root, &files), [expected]);
}

#[test]
fn re_exports_of_everything_are_followed_too() {
    let files = [
        ("b.rs", "use crate::all::C;\npub struct B;\n"),
        ("c.rs", "use super::b::B;\nstruct C;\n"),
    ];
    let root = "mod b;\nmod c;\nmod all { pub use crate::c::*; }\n";
    assert_eq!(cycles(root, &files).len(), 1);
}

#[test]
fn re_exports_that_lead_to_themselves_end() {
    let files = [("b.rs", "pub use super::c::X;\n"), ("c.rs", "pub use super::b::X;\n")];
    assert_eq!(cycles("mod b;\nmod c;\nuse b::X;\n", &files).len(), 1);
}

#[test]
fn super_and_its_own_children_are_understood_at_every_level() {
    let files = [
        ("b/mod.rs", "mod c;\nmod d;\n"),
        ("b/c.rs", "mod deep;\nfn f() { deep::g() }\n"),
        ("b/c/deep.rs", "use super::super::d::D;\nuse super::f;\n"),
        ("b/d.rs", "use super::{c, super::b::c::C};\n"),
    ];
    let expected = "import cycle of the modules of crate::b c, d\n    \
                    c -> d, as in b/c/deep.rs:1: super::super::d::D\n    \
                    d -> c, as in b/d.rs:1: super::c";
    assert_eq!(cycles("mod b;\n", &files), [expected]);
}

#[test]
fn names_in_nested_trees_are_found() {
    let files = [
        ("b.rs", "use crate::{\n    c::{self, C},\n    d::{D, e::{E as F, *}},\n};\n"),
        ("c.rs", "struct C;\n"),
        ("d.rs", "pub mod e;\nuse super::b::{B, b2};\n"),
        ("d/e.rs", ""),
    ];
    let expected = "import cycle of the modules of crate b, d\n    \
                    b -> d, as in b.rs:3: crate::d::D\n    \
                    d -> b, as in d.rs:2: super::b::B";
    assert_eq!(cycles("mod b;\nmod c;\nmod d;\n", &files), [expected]);
}

#[test]
fn code_of_tests_does_not_count() {
    let files = [
        ("b.rs", "use crate::c::C;\n"),
        (
            "c.rs",
            "#[cfg(test)]\nuse crate::b;\n#[cfg(test)]\nmod tests { use crate::b::B; }\n\
             #[cfg(test)]\nmod outside;\n#[cfg(all(test, loom))]\nfn f() { crate::b::g() }\n",
        ),
        ("c/outside.rs", "use crate::b::B;\nmod below;\n"),
        ("c/outside/below.rs", "use crate::b::B;\n"),
    ];
    assert_eq!(cycles("mod b;\nmod c;\n", &files), NONE);
}

#[test]
fn other_crates_of_the_same_name_are_no_modules() {
    let files = [("b.rs", "use c::C;\nuse std::b;\n"), ("c.rs", "use crate::b::B;\n")];
    assert_eq!(cycles("mod b;\nmod c;\n", &files), NONE);
}

/// Returns the violations in crates whose manifests have these dependencies, with these files in
/// the first.
fn in_crates(manifests: &[(&str, &str)], files: &[(&'static str, &'static str)]) -> Vec<String> {
    let manifests: Vec<(&str, String)> = manifests
        .iter()
        .map(|(name, rest)| (*name, format!("[package]\nname = \"{name}\"\n{rest}")))
        .collect();
    let mut crates: BTreeMap<&str, CrateFiles<'_>> = BTreeMap::new();
    for (name, manifest) in &manifests {
        crates.entry(name).or_default().insert("Cargo.toml", manifest);
    }
    crates.entry(manifests[0].0).or_default().extend(files.iter().copied());
    let found = check(&crates);
    let lines = found.iter().flat_map(|finding| finding.what.lines().map(str::trim));
    lines.map(String::from).collect()
}

#[test]
fn crates_may_point_back_for_their_tests_alone() {
    let dependency = |kind: &str, name: &str| format!("[{kind}]\n{name}.workspace = true\n");
    let (one, back) = (dependency("dependencies", "two"), dependency("dev-dependencies", "one"));
    assert_eq!(in_crates(&[("one", &one), ("two", &back)], &[]), NONE);
    let back = dependency("build-dependencies", "one");
    assert_eq!(
        in_crates(&[("one", &one), ("two", &back)], &[]),
        [
            "import cycle of the crates one, two",
            "one -> two, as in crates/one/Cargo.toml: two",
            "two -> one, as in crates/two/Cargo.toml: one",
        ]
    );
}

#[test]
fn modules_of_all_crates_are_looked_at() {
    let files = [
        ("src/lib.rs", "mod b;\nmod c;\n"),
        ("src/b.rs", "use crate::c::C;\n"),
        ("src/c.rs", "use crate::b::B;\n"),
    ];
    assert_eq!(in_crates(&[("one", ""), ("two", "")], &files).len(), 3);
}

use super::*;

/// Returns the violations in a crate `a` with these files below `src`, and a root with these
/// modules.
fn cycles(modules: &str, files: &[(&str, &str)]) -> Vec<String> {
    let paths: Vec<String> = files.iter().map(|(path, _)| format!("src/{path}")).collect();
    let texts = files.iter().map(|(_, text)| *text);
    let mut crate_files: CrateFiles<'_> = paths.iter().map(String::as_str).zip(texts).collect();
    crate_files.insert("src/lib.rs", modules);
    check("a", &crate_files).iter().map(|finding| finding.replace("src/", "")).collect()
}

const NONE: [&str; 0] = [];

#[test]
fn a_cycle_is_shown_with_an_example_for_each_edge() {
    let files = [
        ("b.rs", "use crate::c;\nfn f() { c::g(); crate::c::h(); }\n"),
        ("c.rs", "fn g() -> crate::b::B { todo!() }\n"),
        ("d.rs", "use crate::b::B;\n"),
    ];
    let expected = "a: import cycle of the modules of crate: b, c\n    \
                    b -> c, as in b.rs: crate::c\n    \
                    c -> b, as in c.rs: crate::b::B";
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
    let expected = "a: import cycle of the modules of crate: b, c\n    \
                    b -> c, as in b.rs: crate::C\n    \
                    c -> b, as in c.rs: crate::facade::E";
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
    let expected = "a: import cycle of the modules of crate::b: c, d\n    \
                    c -> d, as in b/c/deep.rs: super::super::d::D\n    \
                    d -> c, as in b/d.rs: super::c";
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
    let expected = "a: import cycle of the modules of crate: b, d\n    \
                    b -> d, as in b.rs: crate::d::D\n    \
                    d -> b, as in d.rs: super::b::B";
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

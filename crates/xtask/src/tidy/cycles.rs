//! Detects cycles between the modules of a crate, and between crates.
//!
//! Between the modules of a crate, at every level, an edge leads from one child of a module to
//! another if code in the first, or anywhere below it, names an item of the second. A child may use
//! its parent, and the parent its child. Re-exports are followed to the module that has the item.
//! Test code does not count. Method calls, and names in macros of other crates, name no module and
//! are not seen.

mod graph;
mod manifests;
mod names;
mod tree;

use std::collections::BTreeMap;

use super::Finding;
use super::modules::{self, CrateFiles};
use graph::{Cycle, Graph};
use tree::{ModulePath, Tree};

/// Checks the crates in `crates/`: each crate, and the dependencies between them.
pub(super) fn check(crates: &BTreeMap<&str, CrateFiles<'_>>) -> Vec<Finding> {
    let mut findings = between_crates(crates);
    findings.extend(crates.iter().flat_map(|(name, files)| between_modules(name, files)));
    findings
}

/// Finds the cycles between the crates' packages.
fn between_crates(crates: &BTreeMap<&str, CrateFiles<'_>>) -> Vec<Finding> {
    let mut packages = Vec::new();
    for (name, files) in crates {
        let manifest = files.get("Cargo.toml").copied().unwrap_or_default();
        if let (Some(package), uses) = manifests::read(manifest) {
            packages.push((name, package, uses));
        }
    }
    let mut graph = Graph::default();
    for (name, package, uses) in &packages {
        for used in uses.iter().filter(|used| packages.iter().any(|(_, p, _)| p == *used)) {
            graph.add(package, used, || format!("crates/{name}/Cargo.toml: {used}"));
        }
    }
    let mend = "move what both need to a crate that both use";
    graph.cycles().iter().map(|cycle| finding("crates", "crates", cycle, mend)).collect()
}

/// Finds the cycles between the modules of a crate, at every level.
fn between_modules(name: &str, files: &CrateFiles<'_>) -> Vec<Finding> {
    let mend = "move what both need to a lower module, or what needs both to an upper one";
    let mut findings = Vec::new();
    for root in modules::roots(files) {
        let tree = Tree::read(root, files);
        for (parent, graph) in siblings(name, &tree) {
            let file = format!("crates/{name}/{}", tree.modules[&parent].file);
            let names = [&["crate".to_string()], parent.as_slice()].concat().join("::");
            let what = format!("modules of {names}");
            findings.extend(graph.cycles().iter().map(|c| finding(&file, &what, c, mend)));
        }
    }
    findings
}

/// Returns the edges between the children of each module.
fn siblings(name: &str, tree: &Tree) -> BTreeMap<ModulePath, Graph> {
    let mut graphs = BTreeMap::<ModulePath, Graph>::new();
    for (from, module) in &tree.modules {
        for named in &module.names.paths {
            let Some(to) = tree.resolve(from, &named.path) else { continue };
            let shared = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
            if let (Some(user), Some(used)) = (from.get(shared), to.get(shared)) {
                let graph = graphs.entry(from[..shared].to_vec()).or_default();
                graph.add(user, used, || {
                    let path = named.path.join("::");
                    format!("crates/{name}/{}:{}: {path}", module.file, named.line)
                });
            }
        }
    }
    graphs
}

fn finding(path: &str, of: &str, cycle: &Cycle, mend: &'static str) -> Finding {
    let mut what = format!("import cycle of the {of} {}", cycle.nodes.join(", "));
    for (from, to, example) in &cycle.edges {
        what.push_str(&format!("\n    {from} -> {to}, as in {example}"));
    }
    Finding { path: path.to_string(), line: 1, what, mend }
}

#[cfg(test)]
mod tests;

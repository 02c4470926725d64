//! Detects import cycles between the modules of a crate.
//!
//! At every level, an edge leads from one child of a module to another if code in the first, or
//! anywhere below it, names an item of the second. A child may use its parent, and the parent its
//! child. Re-exports are followed to the module that has the item. Method calls name no module and
//! are not seen.

use std::collections::{BTreeMap, BTreeSet};

use crate::files::CrateFiles;
use crate::modules::{self, Module, Names};

/// The most re-exports in a chain that are followed.
const REEXPORTS_MAX: usize = 16;

/// The edges between the children of a module, each with an example.
type Graph = BTreeMap<String, BTreeMap<String, String>>;

/// Returns the cycles in the crate of this directory.
pub(crate) fn check(name: &str, files: &CrateFiles<'_>) -> Vec<String> {
    let mut findings = Vec::new();
    for root in files.keys().filter(|path| is_root(path)) {
        let tree = Tree(modules::read(root, files));
        for (parent, graph) in tree.siblings() {
            let parent = [vec!["crate".to_string()], parent].concat().join("::");
            findings.extend(
                cycles(&graph)
                    .iter()
                    .map(|c| format!("{name}: import cycle of the modules of {parent}: {c}")),
            );
        }
    }
    findings
}

/// Returns whether cargo finds a target here.
pub(crate) fn is_root(path: &str) -> bool {
    let binary = path.strip_prefix("src/bin/").map(|path| path.trim_end_matches("/main.rs"));
    ["src/lib.rs", "src/main.rs"].contains(&path) || binary.is_some_and(|name| !name.contains('/'))
}

/// Describes each strongly connected component of more than one node, with its edges.
fn cycles(graph: &Graph) -> Vec<String> {
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        graph.keys().map(|node| (node, reached(graph, node))).collect();
    let leads =
        |from: &String, to: &String| reached.get(from).is_some_and(|nodes| nodes.contains(to));
    let mut seen = BTreeSet::new();
    let mut cycles = Vec::new();
    for &node in reached.keys().filter(|node| leads(node, node)) {
        let is_member = |other: &&&String| leads(node, other) && leads(other, node);
        let members: Vec<&String> = reached.keys().filter(is_member).copied().collect();
        if !seen.insert(members[0]) {
            continue;
        }
        let mut text = members.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
        for from in &members {
            for (to, example) in graph[*from].iter().filter(|(to, _)| members.contains(to)) {
                text.push_str(&format!("\n    {from} -> {to}, as in {example}"));
            }
        }
        cycles.push(text);
    }
    cycles
}

/// Returns every node that a path of at least one edge reaches.
fn reached<'a>(graph: &'a Graph, node: &'a String) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut open = vec![node];
    while let Some(node) = open.pop() {
        let next = graph.get(node).into_iter().flat_map(BTreeMap::keys);
        open.extend(next.filter(|next| reached.insert(*next)));
    }
    reached
}

struct Tree(BTreeMap<Names, Module>);

impl Tree {
    /// Returns the edges between the children of each module.
    fn siblings(&self) -> BTreeMap<Names, Graph> {
        let mut graphs = BTreeMap::<Names, Graph>::new();
        for (from, module) in &self.0 {
            for path in &module.paths {
                let Some(to) = self.start(from, path, 0) else { continue };
                let shared = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
                let (Some(user), Some(used)) = (from.get(shared), to.get(shared)) else { continue };
                let edges = graphs.entry(from[..shared].to_vec()).or_default();
                let edges = edges.entry(user.clone()).or_default();
                let example = || format!("{}: {}", module.file, path.join("::"));
                edges.entry(used.clone()).or_insert_with(example);
            }
        }
        graphs
    }

    /// Returns the module that has the item of a path in the module `from`; `None` for other
    /// crates. Follows re-exports, private ones too, because modules below may use them.
    fn start(&self, from: &[String], path: &[String], followed: usize) -> Option<Names> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => Some(self.walk(&[], rest, followed)),
            "self" => Some(self.walk(from, rest, followed)),
            "super" => {
                let above = rest.iter().take_while(|name| *name == "super").count();
                let module = &from[..from.len().checked_sub(above + 1)?];
                Some(self.walk(module, &rest[above..], followed))
            }
            name if self.is_child(from, name) || self.0[from].imports.contains_key(name) => {
                let found = self.walk(from, path, followed);
                (found != from).then_some(found)
            }
            _ => None,
        }
    }

    /// Follows the names of a path from a module on, as far as they are modules.
    fn walk(&self, module: &[String], path: &[String], followed: usize) -> Names {
        let here = || module.to_vec();
        let (Some((first, rest)), Some(names)) = (path.split_first(), self.0.get(module)) else {
            return here();
        };
        if self.is_child(module, first) {
            return self.walk(&[module, std::slice::from_ref(first)].concat(), rest, followed);
        }
        if names.items.contains(first) || followed == REEXPORTS_MAX {
            return here();
        }
        if let Some(import) = names.imports.get(first) {
            // An import from another crate counts as a use of that crate.
            let whole = [import.as_slice(), rest].concat();
            return self.start(module, &whole, followed + 1).unwrap_or_else(here);
        }
        let globs = names.globs.iter().filter_map(|glob| self.start(module, glob, followed + 1));
        let mut exporting = globs.filter(|module| self.defines(module, first));
        exporting.next().map_or_else(here, |module| self.walk(&module, path, followed + 1))
    }

    fn is_child(&self, module: &[String], name: &str) -> bool {
        self.0.contains_key(&[module, &[name.to_string()]].concat())
    }

    fn defines(&self, module: &[String], name: &str) -> bool {
        let names = self.0.get(module);
        self.is_child(module, name)
            || names.is_some_and(|n| n.items.contains(name) || n.imports.contains_key(name))
    }
}

#[cfg(test)]
mod tests;

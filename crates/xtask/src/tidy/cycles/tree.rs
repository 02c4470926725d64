//! Resolves paths to the modules of a crate.

use std::collections::BTreeMap;

use super::names::{self, Names};
use crate::tidy::lexer;
use crate::tidy::modules::{self, CrateFiles};

/// The most re-exports in a chain that are followed.
const REEXPORTS_MAX: usize = 16;

/// The names of a module, from the crate's root on.
pub(super) type ModulePath = Vec<String>;

/// A module with its file.
pub(super) struct Module {
    pub(super) file: String,
    pub(super) names: Names,
}

/// The modules below one root, without those of tests.
pub(super) struct Tree {
    pub(super) modules: BTreeMap<ModulePath, Module>,
}

impl Tree {
    /// Reads the modules below a root.
    pub(super) fn read(root: &str, files: &CrateFiles<'_>) -> Tree {
        let mut modules = BTreeMap::new();
        for (file, place) in modules::reachable(&[root], files) {
            if place.is_test {
                continue;
            }
            for (inside, names) in names::read(&lexer::lex(files[file.as_str()])) {
                let path: ModulePath = place.module.iter().cloned().chain(inside).collect();
                modules.insert(path, Module { file: file.clone(), names });
            }
        }
        Tree { modules }
    }

    /// Returns the module that has the item of `path` in the module `from`; `None` for other
    /// crates.
    ///
    /// Follows re-exports, private ones too, because modules below may use them.
    pub(super) fn resolve(&self, from: &[String], path: &[String]) -> Option<ModulePath> {
        self.start(from, path, 0)
    }

    fn start(&self, from: &[String], path: &[String], followed: usize) -> Option<ModulePath> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => Some(self.walk(&[], rest, followed)),
            "self" => Some(self.walk(from, rest, followed)),
            "super" => {
                let above = rest.iter().take_while(|name| *name == "super").count();
                let module = &from[..from.len().checked_sub(above + 1)?];
                Some(self.walk(module, &rest[above..], followed))
            }
            name if self.is_child(from, name) || self.module(from)?.imports.contains_key(name) => {
                let found = self.walk(from, path, followed);
                (found != from).then_some(found)
            }
            _ => None,
        }
    }

    /// Follows the names of a path from a module on, as far as they are modules.
    fn walk(&self, module: &[String], path: &[String], followed: usize) -> ModulePath {
        let here = || module.to_vec();
        let (Some((first, rest)), Some(names)) = (path.split_first(), self.module(module)) else {
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

    fn module(&self, path: &[String]) -> Option<&Names> {
        self.modules.get(path).map(|module| &module.names)
    }

    fn is_child(&self, module: &[String], name: &str) -> bool {
        self.modules.contains_key(&[module, &[name.to_string()]].concat())
    }

    fn defines(&self, module: &[String], name: &str) -> bool {
        let names = self.module(module);
        self.is_child(module, name)
            || names.is_some_and(|n| n.items.contains(name) || n.imports.contains_key(name))
    }
}

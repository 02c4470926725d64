//! Reads the modules of a crate with the names that they define, import and use. Code of tests is
//! left out.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, UseTree};

use crate::files::CrateFiles;

/// The names of a module, from the crate's root on.
pub(crate) type Names = Vec<String>;

/// What a module's code names.
#[derive(Default)]
pub(crate) struct Module {
    pub(crate) file: String,
    /// What each name that it imports stands for.
    pub(crate) imports: BTreeMap<String, Names>,
    /// The modules of which it imports everything.
    pub(crate) globs: Vec<Names>,
    /// The items that it defines.
    pub(crate) items: BTreeSet<String>,
    /// Every path of its code.
    pub(crate) paths: Vec<Names>,
}

/// Reads the modules below a root file.
pub(crate) fn read(root: &str, files: &CrateFiles<'_>) -> BTreeMap<Names, Module> {
    let directory = root.rsplit_once('/').map_or("", |(directory, _)| directory).to_string();
    let mut modules = BTreeMap::new();
    let mut reader = Reader { files, modules: &mut modules, here: Vec::new(), directory };
    reader.file(root);
    modules
}

struct Reader<'a> {
    files: &'a CrateFiles<'a>,
    modules: &'a mut BTreeMap<Names, Module>,
    here: Names,
    /// The directory of the files of modules below this one.
    directory: String,
}

impl Reader<'_> {
    /// Reads the file of the module `here`.
    fn file(&mut self, path: &str) {
        let Some(text) = self.files.get(path) else { return };
        // Parsing takes most of the time.
        let lines = crate::lines_without_tests(text);
        let text: String = text.split_inclusive('\n').take(lines).collect();
        let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{path}: {error}"));
        if !is_test(&file.attrs) {
            let module = Module { file: path.to_string(), ..Module::default() };
            self.modules.insert(self.here.clone(), module);
            visit::visit_file(self, &file);
        }
    }

    fn module(&mut self) -> &mut Module {
        self.modules.get_mut(&self.here).expect("it was inserted")
    }

    fn use_tree(&mut self, tree: &UseTree, mut path: Names) {
        match tree {
            UseTree::Path(tree) => {
                path.push(tree.ident.to_string());
                self.use_tree(&tree.tree, path);
            }
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.use_tree(tree, path.clone()));
            }
            UseTree::Glob(_) => {
                self.module().paths.push(path.clone());
                self.module().globs.push(path);
            }
            UseTree::Name(name) => self.import(path, &name.ident, &name.ident),
            UseTree::Rename(name) => self.import(path, &name.ident, &name.rename),
        }
    }

    fn import(&mut self, mut path: Names, name: &syn::Ident, bound: &syn::Ident) {
        if name != "self" || path.is_empty() {
            path.push(name.to_string());
        }
        let is_itself = bound == "self";
        let bound = if is_itself { path.last().cloned() } else { Some(bound.to_string()) };
        self.module().imports.insert(bound.unwrap_or_default(), path.clone());
        self.module().paths.push(path);
    }

    /// Finds the paths in the tokens of a macro, which has a grammar of its own.
    fn tokens(&mut self, tokens: TokenStream) {
        let (mut path, mut colons) = (Names::new(), 0);
        for token in tokens {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == ':' => {
                    colons += 1;
                    continue;
                }
                TokenTree::Ident(ident) if colons == 2 && !path.is_empty() => {
                    path.push(ident.to_string());
                }
                other => {
                    self.add(std::mem::take(&mut path));
                    match other {
                        TokenTree::Ident(ident) => path.push(ident.to_string()),
                        TokenTree::Group(group) => self.tokens(group.stream()),
                        _ => {}
                    }
                }
            }
            colons = 0;
        }
        self.add(path);
    }

    fn add(&mut self, path: Names) {
        if path.len() > 1 {
            self.module().paths.push(path);
        }
    }
}

/// Skips what is compiled for tests alone; adds the names of items.
macro_rules! nodes {
    ($($visit:ident $node:ident $($name:ident)?;)*) => {
        $(fn $visit(&mut self, node: &'ast syn::$node) {
            if !is_test(&node.attrs) {
                $(self.module().items.insert(node.$name.to_string());)?
                visit::$visit(self, node);
            }
        })*
    };
}

impl<'ast> Visit<'ast> for Reader<'_> {
    nodes! {
        visit_item_const ItemConst ident;
        visit_item_enum ItemEnum ident;
        visit_item_foreign_mod ItemForeignMod;
        visit_item_impl ItemImpl;
        visit_item_macro ItemMacro;
        visit_item_static ItemStatic ident;
        visit_item_struct ItemStruct ident;
        visit_item_trait ItemTrait ident;
        visit_item_type ItemType ident;
        visit_item_union ItemUnion ident;
        visit_impl_item_const ImplItemConst;
        visit_impl_item_fn ImplItemFn;
        visit_trait_item_fn TraitItemFn;
        visit_arm Arm;
        visit_field Field;
        visit_field_value FieldValue;
        visit_local Local;
        visit_stmt_macro StmtMacro;
        visit_variant Variant;
    }

    fn visit_item_fn(&mut self, node: &'ast syn::ItemFn) {
        if !is_test(&node.attrs) {
            self.module().items.insert(node.sig.ident.to_string());
            visit::visit_item_fn(self, node);
        }
    }

    fn visit_item_use(&mut self, node: &'ast syn::ItemUse) {
        if !is_test(&node.attrs) && node.leading_colon.is_none() {
            self.use_tree(&node.tree, Names::new());
        }
    }

    fn visit_item_mod(&mut self, node: &'ast syn::ItemMod) {
        if is_test(&node.attrs) {
            return;
        }
        let name = node.ident.to_string();
        let file = self.module().file.clone();
        let inside = format!("{}/{name}", self.directory);
        let directory = std::mem::replace(&mut self.directory, inside.clone());
        self.here.push(name);
        if node.content.is_some() {
            self.modules.insert(self.here.clone(), Module { file, ..Module::default() });
            visit::visit_item_mod(self, node);
        } else {
            self.file(&format!("{inside}.rs"));
            self.file(&format!("{inside}/mod.rs"));
        }
        self.here.pop();
        self.directory = directory;
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if path.leading_colon.is_none() {
            self.add(names);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, node: &'ast syn::Macro) {
        self.visit_path(&node.path);
        self.tokens(node.tokens.clone());
    }
}

/// Returns whether one of the attributes is a `cfg` that is true in tests alone.
fn is_test(attributes: &[Attribute]) -> bool {
    let is_test = |attribute: &Attribute| {
        let Ok(list) = attribute.meta.require_list() else { return false };
        let words = list.tokens.to_string().replace(' ', "").replace("not(test)", "");
        let mut words = words.split(['(', ')', ',']);
        list.path.is_ident("cfg")
            && words.clone().any(|word| word == "test")
            && !words.any(|word| word == "any")
    };
    attributes.iter().any(is_test)
}

//! Every source file is part of a crate: a file that nothing names is not compiled, and nobody
//! notices.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};

use super::source::{Finding, Source};
use crate::workspace::Workspace;

/// Findings for files that no target reaches.
pub(crate) fn check(workspace: &Workspace, sources: &[Source]) -> Vec<Finding> {
    let roots = workspace.members().into_iter().flat_map(|package| &package.targets);
    let roots = roots.filter_map(|target| {
        target.src_path.as_std_path().strip_prefix(workspace.root()).ok().map(Path::to_owned)
    });
    let reached = reached_files(roots.collect(), sources);
    let is_lost = |source: &&Source| !reached.contains(&source.path);
    let message = "no module declares this file, so it is not compiled";
    sources.iter().filter(is_lost).map(|source| source.finding(0, message)).collect()
}

/// The files that modules reach from `roots`.
fn reached_files(roots: Vec<PathBuf>, sources: &[Source]) -> BTreeSet<PathBuf> {
    let by_path: BTreeMap<&Path, &Source> =
        sources.iter().map(|source| (source.path.as_path(), source)).collect();
    let mut reached = BTreeSet::new();
    let mut open: Vec<(PathBuf, Role)> = roots.into_iter().map(|root| (root, Role::Root)).collect();
    while let Some((path, role)) = open.pop() {
        let Some(source) = by_path.get(path.as_path()) else { continue };
        if !reached.insert(path) {
            continue;
        }
        let folder = children_folder(&source.path, role);
        let mut declared = Declared { folder, files: vec![] };
        declared.visit_file(&source.syntax);
        open.extend(declared.files.into_iter().map(|file| (file, Role::Module)));
    }
    reached
}

/// What a file is to its crate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Root,
    Module,
}

/// Where the modules that the file at `path` declares lie.
fn children_folder(path: &Path, role: Role) -> PathBuf {
    let parent = path.parent().unwrap_or(Path::new(""));
    match path.file_stem() {
        Some(stem) if role == Role::Module && stem != "mod" => parent.join(stem),
        _ => parent.to_owned(),
    }
}

/// Files that the modules of a file may lie in; only those that exist matter.
struct Declared {
    folder: PathBuf,
    files: Vec<PathBuf>,
}

impl<'ast> Visit<'ast> for Declared {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        let name = module.ident.to_string();
        if let Some(path) = path_attribute(module) {
            self.files.push(resolve(&self.folder, &path));
        } else if module.content.is_none() {
            self.files.push(self.folder.join(format!("{name}.rs")));
            self.files.push(self.folder.join(&name).join("mod.rs"));
        }
        self.folder.push(name);
        visit::visit_item_mod(self, module);
        self.folder.pop();
    }
}

/// The value of `#[path = "..."]`.
fn path_attribute(module: &syn::ItemMod) -> Option<String> {
    module.attrs.iter().find(|attribute| attribute.path().is_ident("path")).and_then(|attribute| {
        let syn::Meta::NameValue(pair) = &attribute.meta else { return None };
        let syn::Expr::Lit(literal) = &pair.value else { return None };
        let syn::Lit::Str(text) = &literal.lit else { return None };
        Some(text.value())
    })
}

/// `path` from `folder` on, without `..`.
fn resolve(folder: &Path, path: &str) -> PathBuf {
    let mut resolved = folder.to_owned();
    for part in Path::new(path).components() {
        match part {
            std::path::Component::ParentDir => {
                resolved.pop();
            }
            part => resolved.push(part),
        }
    }
    resolved
}

#[cfg(test)]
mod tests {
    use super::super::source::parse_for_test;
    use super::*;

    #[test]
    fn a_path_attribute_is_followed() {
        let folder = Path::new("tests/rules");
        assert_eq!(resolve(folder, "../harness/mod.rs"), Path::new("tests/harness/mod.rs"));
    }

    #[test]
    fn a_file_that_no_module_names_is_not_reached() {
        let sources = [
            parse_for_test("a/src/lib.rs", "mod b; mod c; mod inner { mod d; }"),
            parse_for_test("a/src/b.rs", "mod e;"),
            parse_for_test("a/src/b/e.rs", ""),
            parse_for_test("a/src/c/mod.rs", "#[cfg(test)] mod tests;"),
            parse_for_test("a/src/c/tests.rs", ""),
            parse_for_test("a/src/inner/d.rs", ""),
            parse_for_test("a/src/lost.rs", ""),
        ];
        let reached = reached_files(vec![PathBuf::from("a/src/lib.rs")], &sources);
        let lost: Vec<&Path> = sources
            .iter()
            .map(|source| source.path.as_path())
            .filter(|path| !reached.contains(*path))
            .collect();
        assert_eq!(lost, [Path::new("a/src/lost.rs")]);
    }
}

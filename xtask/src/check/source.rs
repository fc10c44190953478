//! Source files, read and parsed once for all rules.

use std::path::{Path, PathBuf};

use anyhow::Context;
use proc_macro2::TokenStream;

/// A breach of a rule.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Finding {
    /// File, from the root of the workspace on.
    pub(crate) path: PathBuf,
    /// Line, from 1 on; 0 for the whole file.
    pub(crate) line: usize,
    pub(crate) message: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path.display(), self.message),
            line => write!(f, "{}:{line}: {}", self.path.display(), self.message),
        }
    }
}

/// A file of Rust source.
pub(crate) struct Source {
    /// From the root of the workspace on.
    pub(crate) path: PathBuf,
    pub(crate) text: String,
    pub(crate) tokens: TokenStream,
    pub(crate) syntax: syn::File,
}

impl Source {
    /// Reads the file at `path` below `root`.
    pub(crate) fn read(root: &Path, path: PathBuf) -> anyhow::Result<Source> {
        let text = std::fs::read_to_string(root.join(&path))
            .with_context(|| format!("cannot read {}", path.display()))?;
        Source::parse(path, text)
    }

    pub(crate) fn parse(path: PathBuf, text: String) -> anyhow::Result<Source> {
        let syntax = syn::parse_file(&text).with_context(|| format!("in {}", path.display()))?;
        let body = if syntax.shebang.is_some() { text.split_once('\n') } else { None };
        let tokens = body.map_or(text.as_str(), |(_, rest)| rest).parse::<TokenStream>();
        let tokens = tokens.map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
        Ok(Source { path, text, tokens, syntax })
    }

    /// Whether the file is only compiled for tests: its limits are looser.
    pub(crate) fn is_test(&self) -> bool {
        let is_test_folder = |part: std::path::Component<'_>| {
            matches!(part.as_os_str().to_str(), Some("tests" | "benches"))
        };
        self.path.file_name().is_some_and(|name| name == "tests.rs")
            || self.path.components().any(is_test_folder)
            || self.syntax.attrs.iter().any(is_cfg_test)
    }

    pub(crate) fn finding(&self, line: usize, message: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line, message: message.into() }
    }
}

/// Whether `attribute` is `#[cfg(test)]`.
pub(crate) fn is_cfg_test(attribute: &syn::Attribute) -> bool {
    attribute.path().is_ident("cfg")
        && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
}

#[cfg(test)]
pub(crate) fn parse_for_test(path: &str, text: &str) -> Source {
    Source::parse(PathBuf::from(path), text.to_owned()).expect("valid Rust")
}

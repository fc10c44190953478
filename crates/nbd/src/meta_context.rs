//! Metadata contexts: what a client can learn about ranges with BLOCK_STATUS.
//!
//! `base:allocation` is the protocol's own. `x-forebay:cache` says what the cache holds: the flags
//! value of an extent is 0 where it is not cached, 1 where it is clean, 2 where it is dirty. An
//! extent that is cached only in part is reported in parts. Names that begin with `x-` are free for
//! everybody; clients that do not know it ignore it.

/// Flags of `base:allocation`: nothing is stored there.
pub const ALLOCATION_HOLE: u32 = 1 << 0;
/// Flags of `base:allocation`: it reads as zeroes.
pub const ALLOCATION_ZERO: u32 = 1 << 1;

/// Flags value of `x-forebay:cache`: the origin alone has the extent.
pub const CACHE_NONE: u32 = 0;
/// Flags value of `x-forebay:cache`: cached, same as the origin.
pub const CACHE_CLEAN: u32 = 1;
/// Flags value of `x-forebay:cache`: cached, newer than the origin.
pub const CACHE_DIRTY: u32 = 2;

/// A context that the server knows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum MetaContext {
    /// `base:allocation`.
    Allocation,
    /// `x-forebay:cache`.
    Cache,
}

impl MetaContext {
    /// All of them, in the order in which they are listed and answered.
    pub const ALL: [MetaContext; 2] = [MetaContext::Allocation, MetaContext::Cache];

    /// Full name: namespace, colon, leaf.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            MetaContext::Allocation => "base:allocation",
            MetaContext::Cache => "x-forebay:cache",
        }
    }

    /// Number that stands for the context in replies. Any would do; zero is left out because lists
    /// use it for "none".
    pub(crate) fn id(self) -> u32 {
        match self {
            MetaContext::Allocation => 1,
            MetaContext::Cache => 2,
        }
    }

    /// Whether a query of LIST_META_CONTEXT finds it: its name, or its namespace and colon alone.
    pub(crate) fn is_listed_by(self, query: &str) -> bool {
        self.is_selected_by(query)
            || (query.ends_with(':')
                && self.name().starts_with(query)
                && query.find(':') == Some(query.len() - 1))
    }

    /// Whether a query of SET_META_CONTEXT selects it: only its name does.
    pub(crate) fn is_selected_by(self, query: &str) -> bool {
        query == self.name()
    }
}

/// Which contexts a client selected.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ContextSet {
    bits: u8,
}

impl ContextSet {
    /// None.
    pub const EMPTY: ContextSet = ContextSet { bits: 0 };

    /// Adds one.
    pub fn insert(&mut self, context: MetaContext) {
        self.bits |= 1 << context.id();
    }

    /// Whether it was selected.
    #[must_use]
    pub fn contains(self, context: MetaContext) -> bool {
        self.bits & (1 << context.id()) != 0
    }

    /// Whether none was.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.bits == 0
    }

    /// The selected ones, in the order of [`MetaContext::ALL`].
    pub fn iter(self) -> impl Iterator<Item = MetaContext> {
        MetaContext::ALL.into_iter().filter(move |context| self.contains(*context))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries() {
        for context in MetaContext::ALL {
            assert!(context.is_selected_by(context.name()));
            assert!(context.is_listed_by(context.name()));
        }
        assert!(MetaContext::Allocation.is_listed_by("base:"));
        assert!(!MetaContext::Allocation.is_selected_by("base:"));
        assert!(!MetaContext::Allocation.is_listed_by("x-forebay:"));
        assert!(!MetaContext::Allocation.is_listed_by("base:alloc"));
        assert!(!MetaContext::Allocation.is_listed_by("base"));
        assert!(!MetaContext::Allocation.is_listed_by(""));
        assert!(MetaContext::Cache.is_listed_by("x-forebay:"));
    }
}

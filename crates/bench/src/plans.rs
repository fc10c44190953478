//! The plans that come with the program: `bench/plans` of the source.

/// Name and text of each.
pub const BUILT_IN: &[(&str, &str)] = &[
    ("zipf", include_str!("../../../bench/plans/zipf.toml")),
    ("sizes", include_str!("../../../bench/plans/sizes.toml")),
    ("uniform", include_str!("../../../bench/plans/uniform.toml")),
    ("writes", include_str!("../../../bench/plans/writes.toml")),
    ("write-defaults", include_str!("../../../bench/plans/write-defaults.toml")),
    ("published-small", include_str!("../../../bench/plans/published-small.toml")),
    ("defaults", include_str!("../../../bench/plans/defaults.toml")),
    ("mixed", include_str!("../../../bench/plans/mixed.toml")),
    ("terabyte", include_str!("../../../bench/plans/terabyte.toml")),
    ("small-cache", include_str!("../../../bench/plans/small-cache.toml")),
    ("machines", include_str!("../../../bench/plans/machines.toml")),
    ("machines-small", include_str!("../../../bench/plans/machines-small.toml")),
    ("kernel-caches", include_str!("../../../bench/plans/kernel-caches.toml")),
    ("git", include_str!("../../../bench/plans/git.toml")),
    ("database", include_str!("../../../bench/plans/database.toml")),
    ("peers", include_str!("../../../bench/plans/peers.toml")),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;

    #[test]
    fn every_plan_of_the_folder_is_built_in_and_makes_sense() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/plans");
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut names: Vec<String> =
            entries.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
        names.sort();
        let mut known: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
        known.sort_unstable();
        assert_eq!(names, known);
        for (name, text) in BUILT_IN {
            Plan::parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}

//! How many files the daemon may have open: as many as its limit can be raised to. Whoever starts
//! it often has a soft limit of 1024, for the sake of programs that cannot count further.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard one.
pub(crate) fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: maximum, maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, ?current, ?maximum, "the limit of open files stays as it is");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let before = getrlimit(Resource::Nofile);
        // One less hurts no other test.
        let lowered = Rlimit { current: before.maximum.map(|most| most - 1), ..before };
        setrlimit(Resource::Nofile, lowered).unwrap();
        raise_limit();
        assert_eq!(getrlimit(Resource::Nofile).current, before.maximum);
    }
}

//! What two clients get of one origin: the engine takes nothing from either.

use forebay_sim::shares::{Client, Experiment, Origin, Server, Shares, measure};

/// In virtual time, so that no machine is in the way.
const SECONDS: u64 = 300;

fn experiment(clients: [Client; 2], origin: Origin, server: Server) -> Experiment {
    Experiment { clients, origin, server, seed: 1, seconds: SECONDS }
}

fn equal(depth: u64, origin: Origin) -> Shares {
    measure(&experiment([Client::of_depth(depth); 2], origin, Server::Engine))
}

/// A device that takes requests as they come serves equal clients in turn. So they get the same in
/// any second, but for what is under way at its ends, unless the engine hands misses on in another
/// order.
#[test]
fn misses_reach_the_origin_in_the_order_of_their_requests() {
    for depth in [1, 4, 32] {
        let shares = equal(depth, Origin::FixedRate);
        let counts = shares.per_second.iter();
        let apart = counts.map(|[one, other]| one.abs_diff(*other)).max().expect("seconds");
        assert!(apart <= depth, "depth {depth}: {apart} apart in a second");
        let [one, other] = shares.rates();
        assert!((one + other - 250.0).abs() < 1.0, "the device is busy: {one} + {other}");
    }
}

/// A hard disk takes what its head reaches first: whose that is, is chance, and chance evens out. A
/// fair coin would leave either a twentieth behind once in many thousand runs of this length.
#[test]
fn equal_clients_of_a_hard_disk_get_equal_shares_in_the_long_run() {
    for depth in [1, 4, 32] {
        let shares = equal(depth, Origin::HardDisk);
        let whole = shares.less_over_more(SECONDS as usize)[0];
        assert!(whole > 0.95, "depth {depth}: {whole}");
    }
}

/// Clients that differ get through the engine what the device alone would give them: in the order
/// of arrival, the one with more requests under way gets as many times more.
#[test]
fn the_engine_changes_no_shares_of_clients_that_differ() {
    let long = Client { depth: 4, request_blocks: 64 };
    let pairs = [[Client::of_depth(1), Client::of_depth(32)], [Client::of_depth(4), long]];
    // Of the seldom client of a disk some 1,600 requests are answered, each by chance.
    for (origin, tolerance) in [(Origin::HardDisk, 0.15), (Origin::FixedRate, 0.01)] {
        for clients in pairs {
            let rates = |server| measure(&experiment(clients, origin, server)).rates();
            let (bare, engine) = (rates(Server::Bare), rates(Server::Engine));
            for client in 0..2 {
                let ratio = engine[client] / bare[client];
                let what = format!("{clients:?} on {origin:?}, client {client}: {ratio}");
                assert!((ratio - 1.0).abs() < tolerance, "{what}");
            }
            if origin == Origin::FixedRate {
                let depths = clients.map(|client| client.depth as f64);
                let expected = depths[0] / (depths[0] + depths[1]);
                let share = engine[0] / (engine[0] + engine[1]);
                assert!((share / expected - 1.0).abs() < 0.01, "{clients:?}: {share}");
            }
        }
    }
}

#[test]
fn equal_experiments_have_equal_outcomes() {
    let once = || equal(4, Origin::HardDisk);
    assert_eq!(once(), once());
}

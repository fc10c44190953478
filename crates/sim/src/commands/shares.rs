//! `forebay-sim shares`: what two clients get of one origin.

use clap::Args;
use forebay_sim::shares::{Client, Experiment, Origin, Server, Shares, measure};

use super::{CommandResult, Verdict, parse_seed, say};

/// Show what two clients get of one origin that both read from at random, in virtual time.
///
/// All reads miss, and nothing is promoted. First, for clients that do the same: what the client
/// with less gets over what the other one gets, in windows of several lengths: the median, and what
/// nine windows out of ten reach; beside it what a fair coin would have come to that says of each
/// answered request whose it was. Then, for clients that differ: requests a second of each, and
/// over what it gets when it is alone. Each with the device alone and with the engine over it.
/// Equal arguments give equal output.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  forebay-sim shares
  forebay-sim shares --seconds 6400 --seed 2")]
pub(crate) struct Options {
    /// Decides where is read
    #[arg(long, value_name = "SEED", value_parser = parse_seed, default_value = "1")]
    seed: u64,
    /// Seconds of each measurement
    #[arg(long, value_name = "N", default_value_t = 1280)]
    #[arg(value_parser = clap::value_parser!(u64).range(64..=100_000))]
    seconds: u64,
}

/// Lengths of windows in seconds. The first is what a short bench of real time has.
const WINDOW_SECONDS: [usize; 3] = [4, 16, 64];
const ORIGINS: [(Origin, &str); 2] =
    [(Origin::HardDisk, "hard disk server_7200"), (Origin::FixedRate, "250 transfers a second")];
const SERVERS: [(Server, &str); 2] = [(Server::Bare, "the device"), (Server::Engine, "the engine")];
const EQUAL_DEPTHS: [u64; 3] = [1, 4, 32];

fn unequal() -> [([Client; 2], &'static str); 2] {
    let wide = Client { depth: 4, request_blocks: 64 };
    [
        ([Client::of_depth(1), Client::of_depth(32)], "QD1 against QD32"),
        ([Client::of_depth(4), wide], "4 KiB against 256 KiB, QD4 each"),
    ]
}

impl Options {
    fn experiment(&self, clients: [Client; 2], origin: Origin, server: Server) -> Experiment {
        Experiment { clients, origin, server, seed: self.seed, seconds: self.seconds }
    }

    fn equal_line(&self, shares: &Shares) -> String {
        let columns = WINDOW_SECONDS.map(|seconds| {
            let measured = shares.less_over_more(seconds);
            let coin = shares.less_over_more_of_a_coin(seconds, self.seed);
            format!("{} | {}", middle_and_low(measured), middle_and_low(coin))
        });
        columns.join(" | ")
    }
}

/// The median and the tenth percentile.
fn middle_and_low(mut values: Vec<f64>) -> String {
    values.sort_unstable_by(f64::total_cmp);
    let count = values.len();
    format!("{:.2}, {:.2}", values[count / 2], values[count / 10])
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> CommandResult {
    let columns = WINDOW_SECONDS.map(|seconds| format!("{seconds} s | a coin"));
    say(format_args!("| origin | clients | who answers | reads/s | {} |", columns.join(" | ")));
    say("| --- | --- | --- | --: | --: | --: | --: | --: | --: | --: |");
    for (origin, device) in ORIGINS {
        for depth in EQUAL_DEPTHS {
            for (server, name) in SERVERS {
                let clients = [Client::of_depth(depth); 2];
                let shares = measure(&options.experiment(clients, origin, server));
                let rate: f64 = shares.rates().iter().sum();
                let line = options.equal_line(&shares);
                say(format_args!("| {device} | QD{depth} each | {name} | {rate:.0} | {line} |"));
            }
        }
    }
    say("");
    say("| origin | clients | who answers | first, reads/s | over alone | second | over alone |");
    say("| --- | --- | --- | --: | --: | --: | --: |");
    for (origin, device) in ORIGINS {
        for (clients, what) in unequal() {
            for (server, name) in SERVERS {
                let experiment = options.experiment(clients, origin, server);
                let together = measure(&experiment).rates();
                let alone = [0, 1].map(|client| measure(&experiment.alone(client)).rates()[client]);
                let columns = [0, 1].map(|client| {
                    let (rate, own) = (together[client], alone[client]);
                    format!("{rate:.1} | {:.2}", rate / own)
                });
                say(format_args!("| {device} | {what} | {name} | {} |", columns.join(" | ")));
            }
        }
    }
    Ok(Verdict::Good)
}

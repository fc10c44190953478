//! What two clients of one origin get, each in a closed loop of random reads that miss: of the
//! device alone, and of the engine over it.
//!
//! The engine is the real one, devices are models, and time is virtual: what comes out depends on
//! the order in which engine and device take what waits, and on chance, but on no machine.
//!
//! Invariants:
//! - A client has as many requests under way as it wants at any time.
//! - The device alone gets the same requests as the engine, as far as they are as many.
//!
//! Deliberately absent: hits, and connections, which are the host's.

use forebay_device_model::{FixedRate, HardDisk, Model, ModelDevice, Request, RequestKind, Token};
use forebay_engine::units::BLOCK_BYTES;

use crate::modelled_host::{Host, Setup, Wish};
use crate::random::Random;

const BLOCK: u64 = BLOCK_BYTES as u64;
const SECOND_NS: u64 = 1_000_000_000;
/// As in `cargo xtask bench --only fairness`.
const ORIGIN_BYTES: u64 = 2 << 30;
const CACHE_BYTES: u64 = 256 << 20;
/// The default of the product; nothing is dirty here.
const WRITEBACK_PERCENT: u8 = 10;

/// What a client keeps doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Client {
    /// Requests under way.
    pub depth: u64,
    /// Blocks of each.
    pub request_blocks: u64,
}

impl Client {
    /// One that does nothing.
    const ABSENT: Client = Client { depth: 0, request_blocks: 1 };

    /// Reads of 4 KiB.
    #[must_use]
    pub fn of_depth(depth: u64) -> Client {
        Client { depth, request_blocks: 1 }
    }
}

/// The slow device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// Takes next what its head reaches first.
    HardDisk,
    /// 250 transfers a second, in the order of their arrival.
    FixedRate,
}

impl Origin {
    fn model(self) -> Model {
        match self {
            Origin::HardDisk => Model::HardDisk(HardDisk::server_7200()),
            Origin::FixedRate => {
                Model::FixedRate(FixedRate { transfers_per_second: 250, bytes_per_second: None })
            }
        }
    }
}

/// Who answers the clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Server {
    /// The device itself.
    Bare,
    /// The engine, with a cache that holds nothing of what is read.
    Engine,
}

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Experiment {
    /// Both at once.
    pub clients: [Client; 2],
    /// What they miss on.
    pub origin: Origin,
    /// Who answers.
    pub server: Server,
    /// Decides where is read.
    pub seed: u64,
    /// For how long.
    pub seconds: u64,
}

impl Experiment {
    /// The same with one of the clients alone.
    #[must_use]
    pub fn alone(self, client: usize) -> Experiment {
        let mut clients = [Client::ABSENT; 2];
        clients[client] = self.clients[client];
        Experiment { clients, ..self }
    }
}

/// What both clients got.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shares {
    /// Requests of each client that were answered, second by second.
    pub per_second: Vec<[u64; 2]>,
}

impl Shares {
    /// Requests a second of each client, over the whole time.
    #[must_use]
    pub fn rates(&self) -> [f64; 2] {
        sum(&self.per_second).map(|count| count as f64 / self.per_second.len() as f64)
    }

    /// What the client with less got over what the other one got, in each window of so many
    /// seconds. What is left at the end counts for nothing.
    #[must_use]
    pub fn less_over_more(&self, seconds: usize) -> Vec<f64> {
        self.per_second.chunks_exact(seconds).map(|window| less_over_more(sum(window))).collect()
    }

    /// The same if a fair coin had said, of each request that was answered, whose it was.
    #[must_use]
    pub fn less_over_more_of_a_coin(&self, seconds: usize, seed: u64) -> Vec<f64> {
        let mut random = Random::new(seed);
        let windows = self.per_second.chunks_exact(seconds);
        let toss = |window: &[[u64; 2]]| {
            let count: u64 = sum(window).iter().sum();
            let heads = (0..count).filter(|_| random.percent(50)).count() as u64;
            less_over_more([heads, count - heads])
        };
        windows.map(toss).collect()
    }
}

fn sum(seconds: &[[u64; 2]]) -> [u64; 2] {
    let add = |all: [u64; 2], one: &[u64; 2]| [all[0] + one[0], all[1] + one[1]];
    seconds.iter().fold([0, 0], add)
}

fn less_over_more([one, other]: [u64; 2]) -> f64 {
    one.min(other) as f64 / one.max(other).max(1) as f64
}

/// Lets both clients read.
///
/// # Panics
///
/// If requests are longer than the origin, or there is nobody.
#[must_use]
pub fn measure(experiment: &Experiment) -> Shares {
    match experiment.server {
        Server::Bare => Loop::new(experiment, Alone::new(experiment)).run(),
        Server::Engine => {
            let setup = Setup {
                cache_bytes: CACHE_BYTES,
                origin_bytes: ORIGIN_BYTES,
                origin: experiment.origin.model(),
                writeback_percent: WRITEBACK_PERCENT,
            };
            Loop::new(experiment, Host::serve(setup, experiment.seed)).run()
        }
    }
}

/// A read of a client.
#[derive(Clone, Copy, Debug)]
struct Read {
    client: usize,
    block: u64,
    block_count: u64,
}

/// Who answers reads, in virtual time.
trait Answers {
    fn now(&self) -> u64;
    /// When something happens.
    fn next_event(&self) -> Option<u64>;
    /// Lets time pass until `then`, when these reads come; the clients that were answered.
    fn advance(&mut self, then: u64, reads: &[Read]) -> Vec<usize>;
}

impl Answers for Host {
    fn now(&self) -> u64 {
        Host::now(self)
    }

    fn next_event(&self) -> Option<u64> {
        Host::next_event(self)
    }

    fn advance(&mut self, then: u64, reads: &[Read]) -> Vec<usize> {
        let wish = |read: &Read| {
            let Read { client, block, block_count } = *read;
            Wish::Read { client, block, block_count }
        };
        let wishes: Vec<Wish> = reads.iter().map(wish).collect();
        let answered = Host::advance(self, then, &wishes).into_iter();
        let client = |wish| match wish {
            Wish::Read { client, .. } => client,
            Wish::Write(_) => panic!("nobody writes"),
        };
        answered.map(client).collect()
    }
}

/// The device alone. Tokens are the numbers of clients.
struct Alone {
    device: ModelDevice,
    now: u64,
}

impl Alone {
    fn new(experiment: &Experiment) -> Alone {
        let model = experiment.origin.model();
        Alone { device: ModelDevice::new(&model, ORIGIN_BYTES, experiment.seed), now: 0 }
    }
}

impl Answers for Alone {
    fn now(&self) -> u64 {
        self.now
    }

    fn next_event(&self) -> Option<u64> {
        self.device.next_event_ns()
    }

    fn advance(&mut self, then: u64, reads: &[Read]) -> Vec<usize> {
        self.now = self.now.max(then);
        let mut answered = Vec::new();
        while let Some(completion) = self.device.poll(self.now) {
            answered.push(completion.token.0 as usize);
        }
        for read in reads {
            let request = Request {
                kind: RequestKind::Read,
                offset_bytes: read.block * BLOCK,
                length_bytes: read.block_count * BLOCK,
            };
            self.device.push(self.now, Token(read.client as u64), request);
        }
        answered
    }
}

/// Both clients at a server.
struct Loop<S> {
    clients: [Client; 2],
    server: S,
    randoms: [Random; 2],
    seconds: u64,
}

impl<S: Answers> Loop<S> {
    fn new(experiment: &Experiment, server: S) -> Loop<S> {
        let mut random = Random::new(!experiment.seed);
        let randoms = [random.fork(), random.fork()];
        Loop { clients: experiment.clients, server, randoms, seconds: experiment.seconds }
    }

    fn read(&mut self, client: usize) -> Read {
        let block_count = self.clients[client].request_blocks;
        let places = ORIGIN_BYTES / BLOCK / block_count;
        Read { client, block: self.randoms[client].below(places) * block_count, block_count }
    }

    fn run(mut self) -> Shares {
        let mut per_second = vec![[0; 2]; self.seconds as usize];
        let began = self.server.now();
        let mut then = began;
        let mut reads = Vec::new();
        // In turn, so that neither has all its requests before those of the other.
        for number in 0..self.clients.iter().map(|client| client.depth).max().unwrap_or(0) {
            for client in 0..self.clients.len() {
                if number < self.clients[client].depth {
                    reads.push(self.read(client));
                }
            }
        }
        loop {
            let answered = self.server.advance(then, &reads);
            let second = (self.server.now() - began) / SECOND_NS;
            let Some(counts) = per_second.get_mut(second as usize) else {
                return Shares { per_second };
            };
            answered.iter().for_each(|client| counts[*client] += 1);
            reads = answered.into_iter().map(|client| self.read(client)).collect();
            // Who was answered asks again at once.
            then = match self.server.next_event() {
                _ if !reads.is_empty() => self.server.now(),
                Some(next) => next,
                None => panic!("requests are under way, and nothing will happen"),
            };
        }
    }
}

//! The part of the document on vhost-user beside NBD.

use super::super::report::Report;
use super::super::spread::Spread;
use super::super::vhost_user::hand_over;
use super::super::vhost_user::{CACHE_BYTES, Row, Sample, VOLUME_BYTES, VhostUser};
use super::{cell, table};

/// All of it.
pub(super) fn text(measured: &VhostUser, report: &Report) -> String {
    let VhostUser { rows, hand_over } = measured;
    format!(
        "\
## Over vhost-user, beside NBD

One client on this machine (`crates/cli/examples/front_end_load`), without a virtual machine:
random blocks of 4 KiB of a volume of {} MiB that is cached whole, in a log of {} GiB on the RAM
file system, phases of {} s. One thread for each queue of the virtio disk, or for each connection
over a Unix socket; the depth is that of each. Neither client polls: it does what can be done, and
sleeps in a system call until it is told. Notifications of vhost-user are suppressed as virtio says
(`VIRTIO_F_EVENT_IDX`). A ratio is that of vhost-user over that of NBD within a repetition. Phases
with writes end early if they have written their part of half the log.

{}\
CPU time of a request in microseconds, of the daemon and of the client apart, with what both spend
in the kernel; and over vhost-user, how often a request came with a kick of the server, and how
often the client had to sleep:

{}\
A request over NBD crosses the kernel twice each way, with its data: the client writes to the socket
and the daemon receives, the daemon sends and the client reads. Over vhost-user data is copied once,
between the memory of the guest and buffers of the daemon, by the daemon; what crosses the kernel is
a notification, and only if the other side sleeps. There is no hop between threads: the thread that
sees the kick takes requests from the ring, runs the engine, and puts answers into the ring. So at
depth 1 both ways pay for two sleeps and two wake-ups, and at larger depths vhost-user pays for
neither as long as both sides are busy. An answer that the client sleeps for costs the daemon two
calls of the kernel of its own, which ask whether the counter has room and write to it; over NBD it
goes with the ring. At depth 1 every answer is such a one, and vhost-user may be the slower way. In
a real guest, a kick and an interrupt may cost exits of the virtual machine besides, which are no
part of this.

What such a hop would cost, measured alone: requests go to another thread of the client and back,
nothing is done with them, and each thread tells the other by an eventfd and sleeps in a read of its
own. At depth 1 each request wakes up both threads; at depth 32 all requests go in one go, as from a
thread that parses rings. CPU time is that of both threads. A server with a thread of its own for
the rings would pay this for each request, on top of the figures above.

{}",
        VOLUME_BYTES >> 20,
        CACHE_BYTES >> 30,
        report.plan.seconds,
        speed_table(rows),
        cost_table(rows),
        hand_over_table(hand_over),
    )
}

fn hand_over_table(rows: &[hand_over::Row]) -> String {
    let header =
        ["requests handed to a thread and back", "p50, us", "p99, us", "CPU of a request, us"];
    let lines = rows.iter().map(|row| {
        vec![
            format!("QD{}", row.depth),
            cell(row.p50_us(), 1),
            cell(row.p99_us(), 1),
            cell(row.cpu_us(), 2),
        ]
    });
    table(&header, lines)
}

fn speed_table(rows: &[Row]) -> String {
    let header = [
        "work",
        "vhost-user, IOPS",
        "NBD, IOPS",
        "ratio",
        "p50, us",
        "NBD, p50, us",
        "ratio",
        "p99, us",
        "NBD, p99, us",
        "ratio",
    ];
    let lines = rows.iter().map(|row| {
        let mut line = vec![row.work.title()];
        line.extend(compared(row, Sample::iops, 0));
        line.extend(compared(row, Sample::p50_us, 1));
        line.extend(compared(row, Sample::p99_us, 1));
        line
    });
    table(&header, lines)
}

fn cost_table(rows: &[Row]) -> String {
    let header = [
        "work",
        "daemon, vhost-user",
        "daemon, NBD",
        "ratio",
        "client, vhost-user",
        "client, NBD",
        "ratio",
        "kicks of a request",
        "sleeps of a request",
    ];
    let lines = rows.iter().map(|row| {
        let mut line = vec![row.work.title()];
        line.extend(compared(row, Sample::daemon_cpu_us, 2));
        line.extend(compared(row, Sample::client_cpu_us, 2));
        line.push(middle(row.spread(0, Sample::kicks), 2));
        line.push(middle(row.spread(0, Sample::calls), 2));
        line
    });
    table(&header, lines)
}

/// Both ways and their ratio. Only the ratio says how far repetitions lie apart.
fn compared(row: &Row, value: fn(&Sample) -> f64, decimals: usize) -> [String; 3] {
    let of = |way| middle(row.spread(way, value), decimals);
    [of(0), of(1), cell(row.ratio(value), 2)]
}

fn middle(spread: Option<Spread>, decimals: usize) -> String {
    cell(spread.map(|spread| Spread { min: spread.median, max: spread.median, ..spread }), decimals)
}

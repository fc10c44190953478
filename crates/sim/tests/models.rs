//! The device models against published figures.

use forebay_sim::models::{TOLERANCE, figures};

#[test]
fn models_are_near_what_was_measured_on_real_devices() {
    let figures = figures();
    for figure in &figures {
        println!("{figure:?}");
    }
    let far: Vec<_> = figures.iter().filter(|figure| !figure.is_near()).collect();
    assert!(far.is_empty(), "beyond {TOLERANCE} of what was published: {far:#?}");
}

/// More in flight is faster on what has channels, and no slower on what has a queue.
#[test]
fn figures_tell_devices_apart() {
    let figures = figures();
    let rate = |device: &str, work: &str| {
        let found = figures.iter().find(|f| f.device.contains(device) && f.work.contains(work));
        found.expect("it is among the figures").modelled
    };
    assert!(rate("sata_128gb", "3 jobs") > 2.0 * rate("sata_128gb", "1 job"));
    assert!(rate("nvme", "writes") > 100.0 * rate("server_7200", "writes"));
}

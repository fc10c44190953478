//! The twelve rules that keep data, one module each: every test sets up the situation that its rule
//! is about and orders the device operations so that an engine without the rule fails.

#[path = "../harness/mod.rs"]
#[allow(dead_code, unused_imports, reason = "each test target uses its part of the harness")]
mod harness;

mod rule_01_versions;
mod rule_02_order;
mod rule_03_copies;
mod rule_04_around;
mod rule_05_write_ahead;
mod rule_06_checkpoints;
mod rule_07_blanks;
mod rule_08_idle_mark;
mod rule_08_recovery;
mod rule_09_origin_order;
mod rule_10_identity;
mod rule_10_volume_table;
mod rule_11_reserve;
mod rule_12_poison;

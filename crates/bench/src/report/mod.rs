//! What people read of results.

mod csv;
mod markdown;

pub use csv::csv;
pub use markdown::{changes, table};

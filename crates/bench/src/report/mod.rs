//! What people read of results.

mod columns;
mod csv;
mod html;
mod markdown;
pub mod page;
mod verdicts;
mod work;

pub use csv::csv;
pub use html::html;
pub use markdown::{changes, table};

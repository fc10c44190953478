//! Developer commands of forebay.

fn main() {}

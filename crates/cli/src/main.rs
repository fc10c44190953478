//! forebay: a block cache in user space.

fn main() {}

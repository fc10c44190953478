//! Work that is made of many independent pieces, on all cores.

use std::num::NonZero;
use std::sync::{Mutex, mpsc};
use std::thread;

/// Does all `items`, as many at a time as there are cores, each of which has a worker of its own.
/// `take` gets each result as it comes.
///
/// # Errors
/// The first error of `take`; no further items are begun.
pub(crate) fn on_all_cores<Item, Done: Send, Worker: FnMut(Item) -> Done + Send, Error>(
    items: impl Iterator<Item = Item> + Send,
    new_worker: impl Fn() -> Worker,
    take: impl FnMut(Done) -> Result<(), Error>,
) -> Result<(), Error> {
    let queue = Mutex::new(items);
    let next = || queue.lock().expect("no thread panics with it").next();
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            let (sender, next, mut work) = (sender.clone(), &next, new_worker());
            scope.spawn(move || {
                while let Some(item) = next() {
                    if sender.send(work(item)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        receiver.into_iter().try_for_each(take)
    })
}

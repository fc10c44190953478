//! Panics of the code under test, caught and told apart from those of the simulator's user.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    /// Where the code under test panicked; `None` while none runs.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A panic of the code under test.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Panic {
    /// File and line.
    pub(crate) place: String,
    /// Its message.
    pub(crate) text: String,
}

/// Runs `body`; a panic in it prints nothing and becomes an error.
pub(crate) fn catch_panic<T>(body: impl FnOnce() -> T) -> Result<T, Panic> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let earlier = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let place = info.location().map(ToString::to_string).unwrap_or_default();
            let caught = PANIC.with(|panic| match &mut *panic.borrow_mut() {
                Some(text) => {
                    *text = place;
                    true
                }
                None => false,
            });
            if !caught {
                earlier(info);
            }
        }));
    });
    PANIC.with(|panic| *panic.borrow_mut() = Some(String::new()));
    let result = catch_unwind(AssertUnwindSafe(body));
    let place = PANIC.with(|panic| panic.borrow_mut().take()).unwrap_or_default();
    result.map_err(|cause| Panic { place, text: panic_text(cause.as_ref()) })
}

fn panic_text(cause: &(dyn Any + Send)) -> String {
    cause
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| cause.downcast_ref::<&str>().map(ToString::to_string))
        .unwrap_or_default()
}

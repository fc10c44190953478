//! Memory that will be wanted, asked for early.

/// Has the cache line of `item` loaded and does not wait for it; a later use may then find it
/// there. Does nothing on processors other than x86-64.
#[inline(always)]
pub(crate) fn prefetch<T>(item: &T) {
    #[cfg(target_arch = "x86_64")]
    safe_arch::prefetch_t0(item);
    #[cfg(not(target_arch = "x86_64"))]
    let _ = item;
}

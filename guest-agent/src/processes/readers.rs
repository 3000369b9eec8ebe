//! Tracks the readers of a process's journal, and how long the process waits for them.
//!
//! A program can write faster than a stream can carry, so a reader would lose every burst larger than the journal.
//! Therefore a program is held back while a reader is about to lose output, but only for a limited time: all readers of
//! a process share one wait budget. Waiting spends it, and reading refills it. A reader that does not read at all costs
//! the program half a second, once; readers that make progress cannot slow a program below MIN_BYTES_PER_SECOND.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::journal::RETAINED_MAX_BYTES;

const WAIT_BUDGET_MAX: Duration = Duration::from_millis(500);
const MIN_BYTES_PER_SECOND: u64 = 4 * 1024 * 1024;
/// A reader this far behind is waited for. The rest of the journal is reserved for output that is in the pipes when the
/// leader exits.
const LAG_LIMIT_BYTES: u64 = RETAINED_MAX_BYTES as u64 - 256 * 1024;

pub struct Readers {
    state: Mutex<State>,
    progress: Notify,
}

struct State {
    wait_budget: Duration,
    last_key: u64,
    /// How far each reader has read, in bytes since the process started.
    offsets: HashMap<u64, u64>,
}

/// One reader; dropping it removes it.
pub struct Reader<'a> {
    readers: &'a Readers,
    key: u64,
}

impl Default for Readers {
    fn default() -> Self {
        let state = State { wait_budget: WAIT_BUDGET_MAX, last_key: 0, offsets: HashMap::new() };
        Self { state: Mutex::new(state), progress: Notify::new() }
    }
}

impl Readers {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, offset: u64) -> Reader<'_> {
        let mut state = self.state();
        state.last_key += 1;
        let key = state.last_key;
        state.offsets.insert(key, offset);
        Reader { readers: self, key }
    }

    /// Called before more output is read from the program; `written` is the output so far, in bytes.
    pub async fn wait_for_slow_readers(&self, written: u64) {
        loop {
            let progress = self.progress.notified();
            tokio::pin!(progress);
            progress.as_mut().enable();
            let wait_budget = {
                let state = self.state();
                if state.wait_budget.is_zero()
                    || !state.offsets.values().any(|offset| is_about_to_lose_output(*offset, written))
                {
                    return;
                }
                state.wait_budget
            };
            let began = Instant::now();
            let _ = timeout(wait_budget, progress).await;
            let mut state = self.state();
            state.wait_budget = state.wait_budget.saturating_sub(began.elapsed());
        }
    }
}

/// Waiting does not help a reader that has already lost output.
fn is_about_to_lose_output(offset: u64, written: u64) -> bool {
    (LAG_LIMIT_BYTES..=RETAINED_MAX_BYTES as u64).contains(&written.saturating_sub(offset))
}

impl Reader<'_> {
    pub fn advance(&self, bytes: u64) {
        let mut state = self.readers.state();
        if let Some(offset) = state.offsets.get_mut(&self.key) {
            *offset += bytes;
        }
        let earned = Duration::from_micros(bytes * 1_000_000 / MIN_BYTES_PER_SECOND);
        state.wait_budget = (state.wait_budget + earned).min(WAIT_BUDGET_MAX);
        drop(state);
        self.readers.progress.notify_waiters();
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        self.readers.state().offsets.remove(&self.key);
        self.readers.progress.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn readers_that_keep_up_or_have_already_lost_output_are_not_waited_for() {
        let readers = Readers::default();
        let _near = readers.add(5_000_000);
        let _far = readers.add(0);

        readers.wait_for_slow_readers(5_000_000 + LAG_LIMIT_BYTES - 1).await;

        assert_eq!(readers.state().wait_budget, WAIT_BUDGET_MAX);
    }

    #[tokio::test]
    async fn a_reader_that_does_not_read_is_waited_for_only_once() {
        let readers = Readers::default();
        let stalled = readers.add(0);
        readers.wait_for_slow_readers(LAG_LIMIT_BYTES).await;
        assert_eq!(readers.state().wait_budget, Duration::ZERO);

        readers.wait_for_slow_readers(LAG_LIMIT_BYTES).await;
        stalled.advance(MIN_BYTES_PER_SECOND / 4);

        assert_eq!(readers.state().wait_budget, Duration::from_millis(250));
    }

    #[tokio::test]
    async fn the_wait_ends_when_the_reader_advances_or_leaves() {
        let readers = Readers::default();
        let reader = readers.add(0);
        tokio::join!(readers.wait_for_slow_readers(LAG_LIMIT_BYTES), async { reader.advance(1) });
        tokio::join!(readers.wait_for_slow_readers(LAG_LIMIT_BYTES + 1), async { drop(reader) });

        assert!(!readers.state().wait_budget.is_zero());
    }
}

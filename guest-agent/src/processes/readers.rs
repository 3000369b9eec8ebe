//! Who reads the journal of a process, and how long the process waits for them.
//!
//! A program writes faster than a stream carries, so whoever reads along would lose every burst of more than a journal.
//! So a program is held back for readers who are about to lose something, but never for long: there is one account of
//! patience for all readers of a process. Waiting spends it, and what readers take fills it up again. A reader that
//! stands still costs half a second, once; readers who go on cannot slow a program below MIN_BYTES_PER_SECOND.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::journal::KEPT_MAX_BYTES;

const PATIENCE_MAX: Duration = Duration::from_millis(500);
const MIN_BYTES_PER_SECOND: u64 = 4 * 1024 * 1024;
/// So far behind, a reader is waited for. The rest of the journal is for what is in the pipes when the leader ends.
const HOLD_BYTES: u64 = KEPT_MAX_BYTES as u64 - 256 * 1024;

pub struct Readers {
    state: Mutex<State>,
    progress: Notify,
}

struct State {
    patience: Duration,
    made: u64,
    /// Up to where each has read, in bytes since the process began.
    offsets: HashMap<u64, u64>,
}

/// One reader, for as long as it lives.
pub struct Reader<'a> {
    readers: &'a Readers,
    key: u64,
}

impl Default for Readers {
    fn default() -> Self {
        let state = State { patience: PATIENCE_MAX, made: 0, offsets: HashMap::new() };
        Self { state: Mutex::new(state), progress: Notify::new() }
    }
}

impl Readers {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, offset: u64) -> Reader<'_> {
        let mut state = self.state();
        state.made += 1;
        let key = state.made;
        state.offsets.insert(key, offset);
        Reader { readers: self, key }
    }

    /// Before more is taken from the program than the `written` bytes so far.
    pub async fn wait_for_them(&self, written: u64) {
        loop {
            let progress = self.progress.notified();
            tokio::pin!(progress);
            progress.as_mut().enable();
            let patience = {
                let state = self.state();
                if state.patience.is_zero() || !state.offsets.values().any(|offset| is_losing(*offset, written)) {
                    return;
                }
                state.patience
            };
            let began = Instant::now();
            let _ = timeout(patience, progress).await;
            let mut state = self.state();
            state.patience = state.patience.saturating_sub(began.elapsed());
        }
    }
}

/// One that has lost something already is not helped by waiting.
fn is_losing(offset: u64, written: u64) -> bool {
    (HOLD_BYTES..=KEPT_MAX_BYTES as u64).contains(&written.saturating_sub(offset))
}

impl Reader<'_> {
    pub fn has_read(&self, bytes: u64) {
        let mut state = self.readers.state();
        if let Some(offset) = state.offsets.get_mut(&self.key) {
            *offset += bytes;
        }
        let earned = Duration::from_micros(bytes * 1_000_000 / MIN_BYTES_PER_SECOND);
        state.patience = (state.patience + earned).min(PATIENCE_MAX);
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
    async fn nobody_is_waited_for_who_keeps_up_or_has_lost_already() {
        let readers = Readers::default();
        let _near = readers.add(5_000_000);
        let _far = readers.add(0);

        readers.wait_for_them(5_000_000 + HOLD_BYTES - 1).await;

        assert_eq!(readers.state().patience, PATIENCE_MAX);
    }

    #[tokio::test]
    async fn one_that_stands_still_is_waited_for_once_and_not_again() {
        let readers = Readers::default();
        let still = readers.add(0);
        readers.wait_for_them(HOLD_BYTES).await;
        assert_eq!(readers.state().patience, Duration::ZERO);

        readers.wait_for_them(HOLD_BYTES).await;
        still.has_read(MIN_BYTES_PER_SECOND / 4);

        assert_eq!(readers.state().patience, Duration::from_millis(250));
    }

    #[tokio::test]
    async fn the_wait_ends_when_the_reader_moves_or_goes() {
        let readers = Readers::default();
        let reader = readers.add(0);
        tokio::join!(readers.wait_for_them(HOLD_BYTES), async { reader.has_read(1) });
        tokio::join!(readers.wait_for_them(HOLD_BYTES + 1), async { drop(reader) });

        assert!(!readers.state().patience.is_zero());
    }
}

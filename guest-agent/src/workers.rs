//! A thread pool for blocking work: disk writes, path look-ups, starting programs. The event loop never does these
//! itself, because a FUSE mount that hangs would then hang the whole agent.
//!
//! Two threads exist from the start and more are added when all are busy. When the guest has so many processes that no
//! thread can be created, the job waits for a free thread: unlike tokio's pool, this one never panics.

use std::collections::VecDeque;
use std::io::{Error, Result};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

use tokio::sync::oneshot;

type Job = Box<dyn FnOnce() + Send>;

const THREADS_AT_START: usize = 2;
/// This many calls must hang at the same time before exec and files stop responding.
const THREADS_MAX: usize = 32;
const STACK_BYTES: usize = 128 * 1024;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    ready: Condvar,
}

#[derive(Clone, Default)]
pub struct WorkerPool {
    shared: Arc<Shared>,
}

impl WorkerPool {
    pub fn start() -> Self {
        let pool = Self::default();
        for _ in 0..THREADS_AT_START {
            pool.add_thread(&mut pool.lock());
        }
        pool
    }

    /// Runs `job` on a thread and returns its result. If the caller is dropped, the job still runs to completion.
    pub async fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let (done, result) = oneshot::channel();
        self.submit(move || {
            // The receiver may be dropped; the job's effect is what matters.
            let _ = done.send(job());
        });
        result.await.map_err(|_| Error::other("the worker thread dropped the job"))
    }

    pub fn submit(&self, job: impl FnOnce() + Send + 'static) {
        let mut queue = self.lock();
        queue.jobs.push_back(Box::new(job));
        if queue.idle < queue.jobs.len() && queue.threads < THREADS_MAX {
            self.add_thread(&mut queue);
        }
        drop(queue);
        self.shared.ready.notify_one();
    }

    fn add_thread(&self, queue: &mut Queue) {
        let shared = self.shared.clone();
        if Builder::new().stack_size(STACK_BYTES).spawn(move || serve_jobs(&shared)).is_ok() {
            queue.threads += 1;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn serve_jobs(shared: &Shared) {
    block_signals();
    let mut queue = shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(job) = queue.jobs.pop_front() {
            drop(queue);
            job();
            queue = shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        queue.idle += 1;
        queue = shared.ready.wait(queue).unwrap_or_else(PoisonError::into_inner);
        queue.idle -= 1;
    }
}

/// Signals are handled on the main thread only.
fn block_signals() {
    // SAFETY: a local signal set, initialised before use.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_job_that_hangs_does_not_delay_the_others() {
        let pool = WorkerPool::start();
        let (_keep, hang) = std::sync::mpsc::channel::<()>();
        let hang = Arc::new(Mutex::new(hang));
        for _ in 0..8 {
            let hang = hang.clone();
            pool.submit(move || {
                let _ = hang.lock().map(|hang| hang.recv());
            });
        }

        let result = pool.run(|| 42).await;

        assert_eq!(result.ok(), Some(42));
    }
}

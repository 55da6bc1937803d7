//! The threads that compute a forward pass on the CPU.

use std::sync::atomic::{AtomicBool, Ordering};

use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder, Yield};

/// A pool beside rayon's global one. Tokenization and grammar compilation use the global pool, so
/// that the threads of a forward pass never take up their work.
pub struct CpuThreads(ThreadPool);

impl CpuThreads {
    /// One thread for each core, or `RAYON_NUM_THREADS`.
    ///
    /// # Errors
    /// The system cannot start the threads.
    pub fn start() -> Result<Self, ThreadPoolBuildError> {
        let pool = ThreadPoolBuilder::new().thread_name(|i| format!("hearth-cpu-{i}"));
        pool.build().map(Self)
    }

    /// Runs `work`, whose parallel loops use the pool, while the other threads stay awake.
    ///
    /// A forward pass is hundreds of short parallel loops with a little serial work between them,
    /// during which idle threads fall asleep. Waking them took a third of a decode step.
    pub fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.0.install(|| {
            let finished = AtomicBool::new(false);
            rayon::scope(|scope| {
                let finished = &finished;
                // The other threads take jobs from the front of this thread's queue, so each of
                // them gets one of these before any part of a loop. This thread takes jobs from
                // the back.
                for _ in 1..rayon::current_num_threads() {
                    scope.spawn(move |_| wait_for_work(finished));
                }
                let _finish = Finish(finished);
                work()
            })
        })
    }
}

/// Executes work as soon as there is any, without sleeping.
fn wait_for_work(finished: &AtomicBool) {
    while !finished.load(Ordering::Acquire) {
        if rayon::yield_now() != Some(Yield::Executed) {
            std::hint::spin_loop();
        }
    }
}

/// Ends the waiting even when the work panics, because the scope waits for all its jobs.
struct Finish<'a>(&'a AtomicBool);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use rayon::prelude::*;

    use super::*;

    #[test]
    fn loops_within_loops_come_to_an_end_on_any_number_of_threads() {
        for count in [1, 2, 3, 8] {
            let pool = ThreadPoolBuilder::new().num_threads(count).build().unwrap();
            let threads = CpuThreads(pool);
            for _ in 0..200 {
                let sum: usize = threads.run(|| {
                    let rows = (0..50).into_par_iter();
                    rows.map(|row| (0..50).into_par_iter().map(|i| i * row).sum::<usize>())
                        .sum()
                });
                assert_eq!(sum, 1225 * 1225, "{count} threads");
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_threads_keep_working() {
        let threads = CpuThreads::start().unwrap();
        let failed = catch_unwind(AssertUnwindSafe(|| {
            threads.run(|| (0..100).into_par_iter().for_each(|i| assert!(i != 57)));
        }));
        assert!(failed.is_err());
        assert_eq!(
            threads.run(|| (0..100).into_par_iter().sum::<usize>()),
            4950
        );
    }
}

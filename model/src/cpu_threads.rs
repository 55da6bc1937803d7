//! The threads that a forward on the CPU is shared out over.

use std::sync::atomic::{AtomicBool, Ordering};

use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder, Yield};

/// A pool apart from rayon's global one, which tokenizing and compiling grammars use: a thread
/// of a forward never takes up their work.
pub struct CpuThreads(ThreadPool);

impl CpuThreads {
    /// One thread for each core, or `RAYON_NUM_THREADS`.
    ///
    /// # Errors
    /// The system gives no threads.
    pub fn start() -> Result<Self, ThreadPoolBuildError> {
        let pool = ThreadPoolBuilder::new().thread_name(|i| format!("hearth-cpu-{i}"));
        pool.build().map(Self)
    }

    /// Runs `work`, whose parallel loops use the pool, while the other threads stay awake.
    ///
    /// A forward is hundreds of short parallel loops with a little serial work between them, in
    /// which idle threads fall asleep; waking them took a third of a decode step.
    pub fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.0.install(|| {
            let finished = AtomicBool::new(false);
            rayon::scope(|scope| {
                let finished = &finished;
                // Others take jobs from the front of this thread's queue, so that each of them
                // gets one of these before any part of a loop; this thread takes from the back.
                for _ in 1..rayon::current_num_threads() {
                    scope.spawn(move |_| wait_for_work(finished));
                }
                let _finish = Finish(finished);
                work()
            })
        })
    }
}

/// Takes up work as soon as there is any.
fn wait_for_work(finished: &AtomicBool) {
    while !finished.load(Ordering::Acquire) {
        if rayon::yield_now() != Some(Yield::Executed) {
            std::hint::spin_loop();
        }
    }
}

/// Also when the work panics: the scope waits for those who wait.
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
    fn a_panic_reaches_the_caller_and_the_threads_work_on() {
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

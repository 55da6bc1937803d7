//! The threads that evaluate grammars.

use std::collections::VecDeque;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long one job may take. A job takes microseconds; one that takes longer is an abuse or a
/// fault.
pub(super) const TIME_LIMIT: Duration = Duration::from_secs(1);

/// Which jobs go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// A running request needs the job for its next step.
    Next,
    /// A new request needs the job. However many requests arrive, one thread is left for the
    /// running ones.
    Begin,
}

#[derive(Clone, Copy, Debug)]
enum Progress {
    Queued,
    Running(Instant),
    Done,
    /// The job took too long; another thread has taken the place of its worker.
    Abandoned,
}

/// One job, as the engine thread sees it.
#[derive(Debug)]
pub(super) struct Job {
    urgency: Urgency,
    progress: Mutex<Progress>,
}

impl Job {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Abandons the job if it has taken longer than [`TIME_LIMIT`] since a worker began it; the
    /// time in the queue does not count. Returns whether it was abandoned.
    pub fn abandon_if_overdue(&self) -> bool {
        let mut progress = self.progress();
        let overdue = matches!(*progress, Progress::Running(since) if since.elapsed() > TIME_LIMIT);
        if overdue {
            *progress = Progress::Abandoned;
            workers().release(self.urgency);
            workers().replace_one();
        }
        overdue
    }
}

type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    next: VecDeque<(Arc<Job>, Work)>,
    begin: VecDeque<(Arc<Job>, Work)>,
    /// Workers that run a job of [`Urgency::Begin`].
    beginning: usize,
    /// Workers that sleep.
    asleep: usize,
    /// Whether a worker was woken that has not taken the lock yet.
    waking: bool,
}

struct Workers {
    queue: Mutex<Queue>,
    changed: Condvar,
    threads: usize,
}

/// Queues `work` for a worker.
pub(super) fn submit(urgency: Urgency, work: impl FnOnce() + Send + 'static) -> Arc<Job> {
    let job = Arc::new(Job {
        urgency,
        progress: Mutex::new(Progress::Queued),
    });
    let entry: (_, Work) = (Arc::clone(&job), Box::new(work));
    let workers = workers();
    let mut queue = workers.queue();
    match urgency {
        Urgency::Next => queue.next.push_back(entry),
        Urgency::Begin => queue.begin.push_back(entry),
    }
    workers.wake_one(queue);
    job
}

/// The workers, which are started at the first use. There is one for every two cores, because
/// the model's own threads need cores too.
fn workers() -> &'static Workers {
    static WORKERS: OnceLock<Workers> = OnceLock::new();
    static STARTED: OnceLock<()> = OnceLock::new();
    let workers = WORKERS.get_or_init(|| {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        Workers {
            queue: Mutex::default(),
            changed: Condvar::new(),
            threads: (cores / 2).clamp(2, 16),
        }
    });
    STARTED.get_or_init(|| (0..workers.threads).for_each(|_| workers.replace_one()));
    workers
}

impl Workers {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a thread. The thread of an abandoned job ends when that job ends.
    fn replace_one(&'static self) {
        let started = thread::Builder::new()
            .name("hearth-mask".to_owned())
            .spawn(|| self.serve());
        if let Err(error) = started {
            tracing::error!(%error, "cannot start a thread for grammars");
        }
    }

    fn serve(&self) {
        loop {
            let (job, work) = self.take();
            *job.progress() = Progress::Running(Instant::now());
            // Jobs catch their own panics; should one come through, the thread survives it.
            drop(catch_unwind(AssertUnwindSafe(work)));
            let mut progress = job.progress();
            if matches!(*progress, Progress::Abandoned) {
                return;
            }
            *progress = Progress::Done;
            self.release(job.urgency);
        }
    }

    /// A worker is done with a job of this urgency.
    fn release(&self, urgency: Urgency) {
        if urgency == Urgency::Begin {
            let mut queue = self.queue();
            queue.beginning -= 1;
            self.wake_one(queue);
        }
    }

    /// Wakes a worker for `queue`. Waking takes longer than most jobs do, so one worker is woken
    /// at a time, and wakes the next if there are more jobs.
    fn wake_one(&self, mut queue: MutexGuard<'_, Queue>) {
        if queue.asleep > 0 && !queue.waking {
            queue.waking = true;
            drop(queue);
            self.changed.notify_one();
        }
    }

    fn take(&self) -> (Arc<Job>, Work) {
        let mut queue = self.queue();
        loop {
            if let Some(next) = queue.pop(self.threads) {
                if queue.has_work(self.threads) {
                    self.wake_one(queue);
                }
                return next;
            }
            queue.asleep += 1;
            queue = self
                .changed
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
            queue.asleep -= 1;
            queue.waking = false;
        }
    }
}

impl Queue {
    fn has_work(&self, threads: usize) -> bool {
        !self.next.is_empty() || self.may_begin(threads) && !self.begin.is_empty()
    }

    fn may_begin(&self, threads: usize) -> bool {
        self.beginning + 1 < threads
    }

    fn pop(&mut self, threads: usize) -> Option<(Arc<Job>, Work)> {
        if let Some(next) = self.next.pop_front() {
            return Some(next);
        }
        let next = self.may_begin(threads).then(|| self.begin.pop_front())??;
        self.beginning += 1;
        Some(next)
    }
}

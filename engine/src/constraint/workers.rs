//! The threads that walk grammars.

use std::collections::VecDeque;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long one piece of work may take. It takes microseconds; what takes longer is an
/// abuse or a fault.
pub(super) const BUDGET: Duration = Duration::from_secs(1);

/// Which work goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// A request that runs needs it for its next step.
    Next,
    /// A request has come. However many do, one thread is left for those that run.
    Begin,
}

#[derive(Clone, Copy, Debug)]
enum Progress {
    Queued,
    Running(Instant),
    Done,
    /// Its worker is written off: another one has taken its place.
    Abandoned,
}

/// One piece of work, as far as the engine thread sees it.
#[derive(Debug)]
pub(super) struct Job {
    urgency: Urgency,
    progress: Mutex<Progress>,
}

impl Job {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the work up if it has taken longer than [`BUDGET`] since a worker began it:
    /// what lay before it in the queue does not count. Returns whether it has.
    pub fn abandon_if_overdue(&self) -> bool {
        let mut progress = self.progress();
        let overdue = matches!(*progress, Progress::Running(since) if since.elapsed() > BUDGET);
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
    /// Workers that begin an output right now.
    beginning: usize,
    /// Workers that sleep, and whether one of them was woken and has not looked yet.
    asleep: usize,
    waking: bool,
}

struct Workers {
    queue: Mutex<Queue>,
    changed: Condvar,
    threads: usize,
}

/// Has `work` done by a worker.
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

/// The workers, started when the first is used; half of the cores, as the model's own
/// threads need theirs.
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

    /// Starts a thread; one that had to be given up ends when its work does.
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
            // Work contains its own panics; should one come through, the thread stays.
            drop(catch_unwind(AssertUnwindSafe(work)));
            let mut progress = job.progress();
            if matches!(*progress, Progress::Abandoned) {
                return;
            }
            *progress = Progress::Done;
            self.release(job.urgency);
        }
    }

    /// A worker is done with work of this kind.
    fn release(&self, urgency: Urgency) {
        if urgency == Urgency::Begin {
            let mut queue = self.queue();
            queue.beginning -= 1;
            self.wake_one(queue);
        }
    }

    /// Has somebody look at `queue`. Waking takes longer than most work does: one is woken
    /// at a time, and wakes the next if there is more.
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

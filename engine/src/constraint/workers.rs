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
/// After a job that took longer, the next one of the same request is [`Urgency::Slow`].
pub(super) const SLOW: Duration = Duration::from_millis(10);

/// Which jobs go first, the most urgent ones at the top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// A running request needs the job for its next step.
    Next,
    /// A new request needs the job. However many requests arrive, a thread is left for the
    /// running ones.
    Begin,
    /// A running request needs the job, and its job before took long. One thread has all such
    /// jobs, so that requests with slow grammars wait for each other alone.
    Slow,
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

/// The jobs of one urgency.
#[derive(Default)]
struct Lane {
    waiting: VecDeque<(Arc<Job>, Work)>,
    /// Workers that run such a job.
    running: usize,
    /// The most workers that may.
    most: usize,
}

struct Queue {
    /// By [`Urgency`].
    lanes: [Lane; 3],
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

/// A worker for each urgency.
const FEWEST_THREADS: usize = 3;

/// Queues `work` for a worker.
pub(super) fn submit(urgency: Urgency, work: impl FnOnce() + Send + 'static) -> Arc<Job> {
    let job = Arc::new(Job {
        urgency,
        progress: Mutex::new(Progress::Queued),
    });
    let entry: (_, Work) = (Arc::clone(&job), Box::new(work));
    let workers = workers();
    let mut queue = workers.queue();
    queue.lanes[urgency as usize].waiting.push_back(entry);
    workers.wake_one(queue);
    job
}

/// The workers, which are started at the first use. There is one for every two cores, because
/// the model's own threads need cores too, and at least one for each urgency.
fn workers() -> &'static Workers {
    static WORKERS: OnceLock<Workers> = OnceLock::new();
    static STARTED: OnceLock<()> = OnceLock::new();
    let workers = WORKERS.get_or_init(|| {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        let threads = (cores / 2).clamp(FEWEST_THREADS, 16);
        Workers {
            queue: Mutex::new(Queue::new(threads)),
            changed: Condvar::new(),
            threads,
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
        let mut done = None;
        loop {
            let (job, work) = self.take(done);
            *job.progress() = Progress::Running(Instant::now());
            // Jobs catch their own panics; should one come through, the thread survives it.
            drop(catch_unwind(AssertUnwindSafe(work)));
            let mut progress = job.progress();
            if matches!(*progress, Progress::Abandoned) {
                return;
            }
            *progress = Progress::Done;
            done = Some(job.urgency);
        }
    }

    /// The worker of an abandoned job no longer counts. The thread that takes its place is started
    /// afterwards and looks for jobs itself, so that none needs to be woken.
    fn release(&self, urgency: Urgency) {
        self.queue().lanes[urgency as usize].running -= 1;
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

    /// The next job of a worker, whose job before had the urgency `done`.
    fn take(&self, done: Option<Urgency>) -> (Arc<Job>, Work) {
        let mut queue = self.queue();
        if let Some(urgency) = done {
            queue.lanes[urgency as usize].running -= 1;
        }
        loop {
            if let Some(next) = queue.pop() {
                if queue.has_work() {
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
    fn new(threads: usize) -> Self {
        let lane = |most| Lane {
            most,
            ..Lane::default()
        };
        Self {
            lanes: [lane(threads), lane(threads - 2), lane(1)],
            asleep: 0,
            waking: false,
        }
    }

    fn has_work(&self) -> bool {
        self.lanes.iter().any(Lane::can_run)
    }

    fn pop(&mut self) -> Option<(Arc<Job>, Work)> {
        let lane = self.lanes.iter_mut().find(|lane| lane.can_run())?;
        lane.running += 1;
        lane.waiting.pop_front()
    }
}

impl Lane {
    fn can_run(&self) -> bool {
        self.running < self.most && !self.waiting.is_empty()
    }
}

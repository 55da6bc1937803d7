//! A few threads that compile grammars, so that neither the event loop nor the engine waits
//! for a compilation.
//!
//! Each party (a client, or its address) has a queue of its own. The next grammar is that of the
//! party for which the threads have worked least: one that sends heavy grammars waits for its own,
//! and the others do not. Grammars that look [heavy](is_heavy) run on all threads but one, which
//! is left to the others.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crate::compiled::Outcome;
use crate::compiler::Compiler;
use crate::error::GrammarError;
use crate::estimate::is_heavy;
use crate::spec::Spec;
use crate::ticket::Ticket;

/// The most grammars that may wait to be compiled, and the most of one party.
const MAX_WAITING: usize = 256;
const MAX_WAITING_OF_PARTY: usize = 64;
/// The stack of a thread. The parsers of grammars recurse as deeply as a grammar is nested,
/// and a stack overflow would end the process. Only the pages that are used take memory.
const STACK_BYTES: usize = 256 << 20;

type Work = Box<dyn FnOnce() + Send>;

/// A grammar that waits.
struct Waiting {
    ticket: Arc<Ticket>,
    /// True if compiling it may take long.
    heavy: bool,
    work: Work,
}

/// The queue of grammars to be compiled is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolFull {
    #[error("{MAX_WAITING} grammars are waiting to be compiled; try again later")]
    All,
    #[error("{MAX_WAITING_OF_PARTY} of your grammars are waiting to be compiled; try again later")]
    Party,
}

/// The threads. They end when the pool is dropped and its queue is empty.
#[derive(Debug)]
pub struct CompilePool {
    compiler: Arc<Compiler>,
    queue: Arc<Queue>,
}

struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    /// The most heavy grammars that are compiled at once.
    most_heavy: usize,
}

#[derive(Default)]
struct State {
    parties: BTreeMap<String, Party>,
    waiting: usize,
    heavy_running: usize,
    closed: bool,
}

/// The work that is done for one party. It is forgotten when nothing waits or runs for it, except while
/// others are busy: whoever comes back then has not used up less than they have.
#[derive(Default)]
struct Party {
    waiting: VecDeque<Waiting>,
    running: usize,
    /// The time that threads have worked for it.
    used: Duration,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Queue")
    }
}

impl CompilePool {
    /// Starts `threads` threads, one of which reads the vocabulary at once, so that the first
    /// request need not wait for that.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(compiler: Arc<Compiler>, threads: usize) -> std::io::Result<Self> {
        let threads = threads.max(1);
        let pool = Self {
            compiler,
            queue: Arc::new(Queue::new(threads)),
        };
        for index in 0..threads {
            let queue = Arc::clone(&pool.queue);
            let builder = thread::Builder::new()
                .name(format!("hearth-grammar-{index}"))
                .stack_size(STACK_BYTES);
            builder.spawn(move || queue.serve())?;
        }
        let compiler = Arc::clone(&pool.compiler);
        // The queue is empty, so this does not fail.
        let warm_up = Waiting {
            ticket: Arc::default(),
            heavy: false,
            work: Box::new(move || compiler.warm_up()),
        };
        let _ = pool.queue.push("", warm_up);
        Ok(pool)
    }

    pub fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    /// A reference that does not keep the compiler alive.
    pub fn watch(&self) -> Weak<Compiler> {
        Arc::downgrade(&self.compiler)
    }

    /// Queues `spec` of `party` to be compiled; `reply` is called with the outcome on a thread of
    /// the pool, unless the ticket is cancelled before the compilation starts.
    ///
    /// # Errors
    /// If the queue is full.
    pub fn submit(
        &self,
        spec: Spec,
        party: &str,
        reply: impl FnOnce(Outcome) + Send + 'static,
    ) -> Result<Arc<Ticket>, PoolFull> {
        let ticket = Arc::new(Ticket::default());
        let (compiler, held) = (Arc::clone(&self.compiler), Arc::clone(&ticket));
        let heavy = is_heavy(&spec);
        let work: Work =
            Box::new(move || {
                held.set_started();
                let outcome = catch_unwind(AssertUnwindSafe(|| compiler.compile(&spec, &held)));
                reply(outcome.unwrap_or_else(|_| {
                    Err(GrammarError::invalid("the grammar cannot be compiled"))
                }));
            });
        let waiting = Waiting {
            ticket: Arc::clone(&ticket),
            heavy,
            work,
        };
        self.queue.push(party, waiting)?;
        Ok(ticket)
    }
}

impl Drop for CompilePool {
    fn drop(&mut self) {
        self.queue.state().closed = true;
        self.queue.changed.notify_all();
    }
}

impl Queue {
    fn new(threads: usize) -> Self {
        Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            most_heavy: (threads - 1).max(1),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, party: &str, waiting: Waiting) -> Result<(), PoolFull> {
        let mut state = self.state();
        state.drop_cancelled();
        if state.waiting >= MAX_WAITING {
            return Err(PoolFull::All);
        }
        // A party that was not here begins where the others are.
        let least = state.parties.values().map(|party| party.used).min();
        let own = state
            .parties
            .entry(party.to_owned())
            .or_insert_with(|| Party {
                used: least.unwrap_or_default(),
                ..Party::default()
            });
        if own.waiting.len() >= MAX_WAITING_OF_PARTY {
            return Err(PoolFull::Party);
        }
        own.waiting.push_back(waiting);
        state.waiting += 1;
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// A thread's life.
    fn serve(&self) {
        let mut state = self.state();
        loop {
            state.drop_cancelled();
            let Some((party, next)) = state.next(self.most_heavy) else {
                if state.closed {
                    return;
                }
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            let began = Instant::now();
            // A reply may panic, if anything.
            let _ = catch_unwind(AssertUnwindSafe(next.work));
            state = self.state();
            state.done(&party, next.heavy, began.elapsed());
        }
    }
}

impl State {
    /// Takes the next grammar, of the party that has been served least.
    fn next(&mut self, most_heavy: usize) -> Option<(String, Waiting)> {
        let may_be_heavy = self.heavy_running < most_heavy;
        let first = |party: &Party| {
            let mut waiting = party.waiting.iter();
            waiting.position(|waiting| may_be_heavy || !waiting.heavy)
        };
        let can_run = self.parties.iter();
        let can_run = can_run.filter_map(|(name, party)| Some((name, party, first(party)?)));
        // Time that is running now is not counted yet.
        let least = can_run.min_by_key(|(_, party, _)| (party.running, party.used));
        let (name, _, index) = least?;
        let name = name.clone();
        let party = self.parties.get_mut(&name)?;
        let next = party.waiting.remove(index)?;
        party.running += 1;
        self.waiting -= 1;
        self.heavy_running += usize::from(next.heavy);
        Some((name, next))
    }

    fn done(&mut self, name: &str, heavy: bool, took: Duration) {
        self.heavy_running -= usize::from(heavy);
        if let Some(party) = self.parties.get_mut(name) {
            party.running -= 1;
            party.used += took;
        }
        let busy = |party: &Party| party.running > 0 || !party.waiting.is_empty();
        if !self.parties.values().any(busy) {
            self.parties.clear();
        }
    }

    /// Drops work that nobody waits for any more.
    fn drop_cancelled(&mut self) {
        let mut left = 0;
        for party in self.parties.values_mut() {
            party
                .waiting
                .retain(|waiting| !waiting.ticket.is_cancelled());
            left += party.waiting.len();
        }
        self.waiting = left;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn work(report: &mpsc::Sender<&'static str>, name: &'static str, took: Duration) -> Waiting {
        let report = report.clone();
        Waiting {
            ticket: Arc::default(),
            heavy: false,
            work: Box::new(move || {
                thread::sleep(took);
                report.send(name).unwrap();
            }),
        }
    }

    #[test]
    fn the_party_that_was_served_least_is_next() {
        let queue = Queue::new(1);
        let (report, reports) = mpsc::channel();
        for _ in 0..3 {
            let heavy = work(&report, "heavy", Duration::from_millis(20));
            queue.push("a", heavy).unwrap();
        }
        for _ in 0..3 {
            let light = work(&report, "light", Duration::ZERO);
            queue.push("b", light).unwrap();
        }
        queue.state().closed = true;
        queue.serve();
        let order: Vec<_> = reports.try_iter().collect();
        assert_eq!(
            order,
            ["heavy", "light", "light", "light", "heavy", "heavy"]
        );
        assert!(queue.state().parties.is_empty(), "nothing is remembered");
    }

    #[test]
    fn heavy_grammars_of_many_parties_leave_a_thread_to_the_others() {
        let queue = Arc::new(Queue::new(2));
        let (report, reports) = mpsc::channel();
        let heavy = || Waiting {
            heavy: true,
            ..work(&report, "heavy", Duration::from_millis(50))
        };
        for party in ["a", "b", "c"] {
            queue.push(party, heavy()).unwrap();
        }
        for _ in 0..3 {
            let light = work(&report, "light", Duration::ZERO);
            queue.push("a", light).unwrap();
        }
        queue.state().closed = true;
        let other = Arc::clone(&queue);
        let other = thread::spawn(move || other.serve());
        queue.serve();
        other.join().unwrap();
        let order: Vec<_> = reports.try_iter().collect();
        assert_eq!(
            order,
            ["light", "light", "light", "heavy", "heavy", "heavy"]
        );
        assert_eq!(queue.state().heavy_running, 0);
    }

    #[test]
    fn one_party_cannot_fill_the_queue_and_cancelled_work_makes_room() {
        let queue = Queue::new(1);
        let (report, reports) = mpsc::channel();
        let ticket = Arc::<Ticket>::default();
        for _ in 0..MAX_WAITING_OF_PARTY {
            let one = Waiting {
                ticket: Arc::clone(&ticket),
                ..work(&report, "one", Duration::ZERO)
            };
            queue.push("a", one).unwrap();
        }
        let more = || work(&report, "more", Duration::ZERO);
        let full = queue.push("a", more());
        assert_eq!(full, Err(PoolFull::Party));
        queue.push("b", more()).unwrap();
        ticket.cancel();
        queue.push("a", more()).unwrap();
        queue.state().closed = true;
        queue.serve();
        assert_eq!(reports.try_iter().collect::<Vec<_>>(), ["more", "more"]);
    }
}

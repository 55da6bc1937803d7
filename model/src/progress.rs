//! Progress bars of loading and tuning, which are drawn only on a terminal, and lines about other work
//! that people wait for.

use std::io::{IsTerminal, Write, stderr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// A bar on standard error that fills as `total` bytes of weights are loaded; for
/// [`Weights::set_progress`](crate::weights::Weights::set_progress).
pub fn loading_bar(total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("loading [{wide_bar}] {bytes}/{total_bytes} ({eta})")
        .expect("the template is valid");
    ProgressBar::new(total).with_style(style)
}

/// A bar on standard error that counts `what`, for example `timing kernels`.
pub fn counting_bar(what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} [{wide_bar}] {pos}/{len}")
        .expect("the template is valid");
    ProgressBar::new(0).with_style(style).with_message(what)
}

/// Work that ends sooner is not told of.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two rewritings of the line on a terminal, and between two lines elsewhere.
const REDRAWN: Duration = Duration::from_millis(200);
const REPEATED: Duration = Duration::from_secs(5);

/// Tells how far a piece of work is, once it takes over a second: on a terminal in one line of standard
/// error that is rewritten and then removed, elsewhere in the log, in a line every five seconds and one
/// at the end. A thread of its own writes, so that the line appears while a single part takes long, and
/// a terminal that is slow holds up nobody.
pub struct Progress(Arc<Shared>);

struct Shared {
    what: &'static str,
    begun: Instant,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Clone, Default)]
struct State {
    done: usize,
    of: usize,
    /// The current work.
    part: String,
    ended: bool,
}

impl Progress {
    /// `what` begins the line: `checking kernels`.
    pub fn begin(what: &'static str) -> Self {
        let shared = Arc::new(Shared {
            what,
            begun: Instant::now(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let teller = Arc::clone(&shared);
        // Without a thread nothing is told, and the work goes on.
        let _ = thread::Builder::new()
            .name("progress".to_owned())
            .spawn(move || teller.tell());
        Self(shared)
    }

    /// `done` of `of` parts are done, and `part` is the next one.
    pub fn at(&self, done: usize, of: usize, part: impl Into<String>) {
        let mut state = self.0.lock();
        (state.done, state.of, state.part) = (done, of, part.into());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self) {
        let is_terminal = stderr().is_terminal();
        let (mut wait, mut told) = (PATIENCE, false);
        loop {
            let state = self.lock();
            let waited = self
                .changed
                .wait_timeout_while(state, wait, |state| !state.ended);
            // Written without the lock: a write may take long.
            let state = waited.unwrap_or_else(PoisonError::into_inner).0.clone();
            let took = self.begun.elapsed();
            if state.ended && !told {
                return;
            }
            let text = match state.ended {
                true if is_terminal => String::new(),
                true => format!("{}: done in {} s", self.what, took.as_secs()),
                false => line(self.what, &state, took),
            };
            if is_terminal {
                // A terminal that has gone is no reason to stop.
                let _ = write!(stderr(), "\r{text}\x1b[K");
            } else {
                tracing::info!("{text}");
            }
            if state.ended {
                return;
            }
            told = true;
            wait = if is_terminal { REDRAWN } else { REPEATED };
        }
    }
}

/// Columns of a line that no terminal in use breaks.
const COLUMNS: usize = 79;

/// `checking kernels: 12 of 57, 3 s, about 11 s left: attention, 24 tokens`
fn line(what: &str, state: &State, took: Duration) -> String {
    let State { done, of, part, .. } = state;
    let mut line = format!("{what}: {done} of {of}, {} s", took.as_secs());
    if *done > 0 && of > done {
        let left = took.as_secs_f64() * (of - done) as f64 / *done as f64;
        line += &format!(", about {left:.0} s left");
    }
    if !part.is_empty() {
        line += &format!(": {part}");
    }
    match line.char_indices().nth(COLUMNS) {
        Some((end, _)) => line[..end].to_owned(),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_count_the_time_an_estimate_and_the_part() {
        let state = |done, part: &str| State {
            done,
            of: 20,
            part: part.to_owned(),
            ended: false,
        };
        let took = Duration::from_millis(6500);
        let begun = line("checking kernels", &state(0, "linear"), took);
        assert_eq!(begun, "checking kernels: 0 of 20, 6 s: linear");
        let later = line("checking kernels", &state(5, ""), took);
        assert_eq!(later, "checking kernels: 5 of 20, 6 s, about 20 s left");
        let long = line("checking kernels", &state(20, &"ä".repeat(100)), took);
        assert_eq!(long.chars().count(), COLUMNS);
    }

    #[test]
    fn the_bar_counts_to_its_total() {
        let bar = loading_bar(10);
        bar.inc(10);
        assert_eq!((bar.position(), bar.length()), (10, Some(10)));
        bar.finish_and_clear();
    }
}

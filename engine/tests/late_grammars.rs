//! Grammars that are slow, panic or hang, beside requests without such grammars.
#![allow(clippy::unwrap_used)]

mod common;

use std::fmt;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use common::{Answer, Fixture, VOCAB, answer, expected, greedy, request};
use hearth_engine::constraint::{Constrain, Constraint, Grammar};
use hearth_engine::{AbortTarget, EngineConfig, Event, FinishReason, Request, SamplingParams};
use hearth_forward::TokenMask;

/// A question that the engine asks a grammar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    Start,
    Forced,
    Mask,
}

const QUESTIONS: [Question; 3] = [Question::Start, Question::Forced, Question::Mask];

impl Question {
    /// A number of tokens after which the question is asked.
    fn position(self) -> usize {
        match self {
            Self::Start => 0,
            Self::Forced => 5,
            Self::Mask => 6,
        }
    }
}

/// The action of a grammar before it answers, given the question and the number of tokens.
type Mischief = Arc<dyn Fn(Question, usize) + Send + Sync>;

/// Allows ten tokens at each even position, and one at each odd position.
#[derive(Clone)]
struct Naughty {
    length: usize,
    mischief: Mischief,
    at: usize,
}

impl fmt::Debug for Naughty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Naughty")
    }
}

impl Naughty {
    fn request(
        prompt: &[u32],
        length: usize,
        mischief: impl Fn(Question, usize) + Send + Sync + 'static,
    ) -> Request {
        let grammar = Self {
            length,
            mischief: Arc::new(mischief),
            at: 0,
        };
        Request {
            constraint: Some(Constrain {
                grammar: Arc::new(grammar),
                jump_forward: true,
            }),
            ..request(prompt, 400)
        }
    }
}

impl Grammar for Naughty {
    fn start(&self) -> Box<dyn Constraint> {
        (self.mischief)(Question::Start, 0);
        Box::new(self.clone())
    }
}

impl Constraint for Naughty {
    fn mask(&mut self) -> Result<TokenMask, String> {
        (self.mischief)(Question::Mask, self.at);
        let mut mask = vec![0; VOCAB.div_ceil(32)];
        let many = if self.at.is_multiple_of(2) { 10 } else { 1 };
        for token in (0..many).map(|i| (self.at * 3 + i) % 90) {
            mask[token / 32] |= 1 << (token % 32);
        }
        Ok(mask.into())
    }

    fn consume(&mut self, _token: u32) -> Result<(), String> {
        self.at += 1;
        Ok(())
    }

    fn forced(&mut self, limit: usize) -> Vec<u32> {
        (self.mischief)(Question::Forced, self.at);
        let forced = (self.at % 2 == 1 && limit > 0).then_some((self.at * 3 % 90) as u32);
        forced.into_iter().collect()
    }

    fn is_complete(&self) -> bool {
        self.at >= self.length
    }

    fn canceller(&self) -> Box<dyn Fn() + Send> {
        Box::new(|| {})
    }
}

/// Blocks threads until it is opened.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn pass(&self) {
        let open = self.open.lock().unwrap();
        drop(self.opened.wait_while(open, |open| !*open).unwrap());
    }

    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

fn run(fixture: &Fixture, request: Request) -> Answer {
    answer(fixture.engine.submit(request).unwrap())
}

/// The number of tokens before the failure, and the text of the failure.
fn failed(answer: Answer) -> (usize, String) {
    (answer.tokens.len(), answer.end.unwrap_err())
}

/// The number of threads that evaluate grammars.
fn threads() -> usize {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    (cores / 2).clamp(3, 16)
}

const WHOLE: FinishReason = FinishReason::Stop { token: None };

#[test]
fn other_requests_continue_while_a_grammar_hangs_and_only_its_request_fails() {
    for question in QUESTIONS {
        let fixture = Fixture::new(EngineConfig::default(), 1024);
        let gate = Arc::new(Gate::default());
        let hold = Arc::clone(&gate);
        let hanging = Naughty::request(&[1, 2], 20, move |asked, at| {
            if (asked, at) == (question, question.position()) {
                hold.pass();
            }
        });
        let hanging = fixture.engine.submit(hanging).unwrap();
        // These requests end before the gate is opened.
        let others = [
            fixture.submit(&[3, 4], 200),
            fixture
                .engine
                .submit(Naughty::request(&[5, 6], 50, |_, _| {}))
                .unwrap(),
        ];
        let [plain, constrained] = others.map(answer);
        assert_eq!(plain.tokens, expected(&[3, 4], 200), "{question:?}");
        assert_eq!(constrained.end.unwrap().0, WHOLE);
        let (tokens, error) = failed(answer(hanging));
        assert!(error.contains("took longer than 1000 ms"), "{error}");
        assert_eq!(tokens, question.position());
        assert_eq!(run(&fixture, request(&[3, 4], 5)).tokens.len(), 5);
        gate.open();
        fixture.assert_idle_and_conserved();
    }
}

#[test]
fn more_hanging_grammars_than_threads_leave_threads_to_other_requests() {
    let fixture = Fixture::new(EngineConfig::default(), 1024);
    let gate = Arc::new(Gate::default());
    let hanging: Vec<_> = (0..threads() + 1)
        .map(|i| {
            let hold = Arc::clone(&gate);
            let question = QUESTIONS[1 + i % 2];
            let request = Naughty::request(&[1, 2], 20, move |asked, at| {
                if (asked, at) == (question, question.position()) {
                    hold.pass();
                }
            });
            fixture.engine.submit(request).unwrap()
        })
        .collect();
    for hanging in hanging {
        assert!(failed(answer(hanging)).1.contains("took longer"));
    }
    let fine = run(&fixture, Naughty::request(&[5, 6], 50, |_, _| {}));
    assert_eq!(fine.end.unwrap().0, WHOLE);
    gate.open();
    fixture.assert_idle_and_conserved();
}

#[test]
fn requests_with_slow_grammars_wait_for_each_other_alone() {
    let fixture = Fixture::new(EngineConfig::default(), 1024);
    let slow: Vec<_> = (0..2 * threads())
        .map(|_| {
            let request = Naughty::request(&[1, 2], 40, |asked, at| {
                if asked == Question::Mask && at > 0 {
                    thread::sleep(Duration::from_millis(30));
                }
            });
            fixture.engine.submit(request).unwrap()
        })
        .collect();
    let fine = run(&fixture, Naughty::request(&[5, 6], 50, |_, _| {}));
    assert_eq!(fine.end.unwrap().0, WHOLE);
    // If any thread had slow jobs, this request would have waited for its masks as long as the
    // others did.
    let running = fixture.engine.stats().running;
    assert_eq!(running, slow.len(), "the slow ones are not done");
    drop(slow);
    fixture.assert_idle_and_conserved();
}

/// Keeps panics of workers silent: with RUST_BACKTRACE, printing one takes longer than a grammar may
/// take.
fn keep_workers_panics_short() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if thread::current().name() != Some("hearth-mask") {
            usual(panic);
        }
    }));
}

#[test]
fn a_panic_at_any_question_ends_its_request_only() {
    keep_workers_panics_short();
    for question in QUESTIONS {
        let fixture = Fixture::new(EngineConfig::default(), 1024);
        let beside = fixture.submit(&[3, 4], 100);
        let panicking = Naughty::request(&[1, 2], 20, move |asked, at| {
            assert!(
                (asked, at) != (question, question.position()),
                "as the test says"
            );
        });
        let (_, error) = failed(run(&fixture, panicking));
        assert!(error.contains("panicked: as the test says"), "{error}");
        assert_eq!(answer(beside).tokens, expected(&[3, 4], 100));
        fixture.assert_idle_and_conserved();
    }
}

#[test]
fn outputs_do_not_depend_on_how_late_a_grammar_is() {
    let params = |seed| SamplingParams {
        seed: Some(seed),
        temperature: 1.0,
        ..greedy(400)
    };
    let run_all = |pause: Option<Duration>, config: EngineConfig, slots| {
        let fixture = Fixture::new(config, slots);
        let running: Vec<_> = (0..6)
            .map(|i| {
                // Late from time to time, each at positions of its own.
                let request = Naughty::request(&[1, i, 3], 24, move |_, at| {
                    if let Some(pause) = pause
                        && (at + i as usize).is_multiple_of(5)
                    {
                        thread::sleep(pause);
                    }
                });
                let request = Request {
                    params: params(u64::from(i)),
                    ..request
                };
                fixture.engine.submit(request).unwrap()
            })
            .collect();
        let plain = fixture.submit(&[9, 9], 50);
        let tokens: Vec<Vec<u32>> = running
            .into_iter()
            .map(|generation| {
                let answer = answer(generation);
                assert_eq!(answer.end.unwrap().0, WHOLE);
                answer.tokens
            })
            .collect();
        assert_eq!(answer(plain).tokens, expected(&[9, 9], 50));
        fixture.assert_idle_and_conserved();
        tokens
    };
    let on_time = run_all(None, EngineConfig::default(), 1024);
    let pause = Some(Duration::from_millis(3));
    assert_eq!(run_all(pause, EngineConfig::default(), 1024), on_time);
    let retracting = EngineConfig {
        retract_every: Some(3),
        ..EngineConfig::default()
    };
    assert_eq!(run_all(pause, retracting, 1024), on_time);
    assert_eq!(run_all(pause, EngineConfig::default(), 80), on_time);
}

#[test]
fn the_time_in_the_queue_behind_slow_grammars_does_not_count() {
    let fixture = Fixture::new(EngineConfig::default(), 1024);
    // Together they take several times the time that one of them may take, on any number of threads.
    let slow = |question| {
        Naughty::request(&[1, 2], 2, move |asked, _| {
            if asked == question {
                thread::sleep(Duration::from_millis(350));
            }
        })
    };
    let all: Vec<_> = (0..threads() * 3)
        .map(|_| fixture.engine.submit(slow(Question::Start)).unwrap())
        .collect();
    for generation in all {
        assert_eq!(answer(generation).end.unwrap().0, WHOLE);
    }
}

#[test]
fn a_request_that_waits_for_its_grammar_counts_as_waiting_and_can_be_aborted() {
    let fixture = Fixture::new(EngineConfig::default(), 1024);
    let gate = Arc::new(Gate::default());
    let begun = Arc::new(AtomicUsize::new(0));
    let submit = |id: &str| {
        let (hold, begun) = (Arc::clone(&gate), Arc::clone(&begun));
        let request = Naughty::request(&[1, 2], 4, move |asked, _| {
            if asked == Question::Start {
                begun.fetch_add(1, Ordering::SeqCst);
                hold.pass();
            }
        });
        let id = Some(id.to_owned());
        fixture.engine.submit(Request { id, ..request }).unwrap()
    };
    let (named, dropped) = (submit("named"), submit("dropped"));
    assert_eq!(fixture.engine.stats().waiting, 2);
    drop(dropped);
    let target = AbortTarget::Prefix("nam".to_owned());
    assert_eq!(fixture.engine.abort(target).wait_blocking(), Ok(1));
    assert_eq!(answer(named).end.unwrap().0, FinishReason::Aborted);
    gate.open();
    fixture.assert_idle_and_conserved();
    assert!(begun.load(Ordering::SeqCst) <= 2);
}

#[test]
fn a_late_mask_keeps_only_its_own_request_out_of_the_steps() {
    let fixture = Fixture::new(EngineConfig::default(), 1024);
    let gate = Arc::new(Gate::default());
    let hold = Arc::clone(&gate);
    let late = Naughty::request(&[1, 2], 20, move |asked, at| {
        if asked == Question::Mask && at == 4 {
            hold.pass();
        }
    });
    let mut late = fixture.engine.submit(late).unwrap();
    let mut tokens = 0;
    while tokens < 4 {
        tokens += match late.next_blocking().unwrap() {
            Event::Token(_) => 1,
            Event::Forced(tokens) => tokens.len(),
            _ => 0,
        };
    }
    let before = fixture.steps().len();
    run(&fixture, request(&[3, 4], 100));
    let steps = fixture.steps().split_off(before);
    // The late request is in the step that computed its row of logits, and then in none.
    let beside = steps.iter().filter(|step| step.sequences > 1).count();
    assert!((100..=101).contains(&steps.len()), "{}", steps.len());
    assert!(beside <= 1, "{beside}");
    gate.open();
    drop(late);
    fixture.assert_idle_and_conserved();
}

/// The runs of a request of 20 tokens, of which a grammar forces half.
fn runs(fixture: &Fixture) -> usize {
    let request = Naughty::request(&[1, 2], 20, |_, _| {});
    let mut generation = fixture.engine.submit(request).unwrap();
    let mut tokens = Vec::new();
    while let Some(event) = generation.next_blocking() {
        match event {
            Event::Token(token) => tokens.push(token),
            Event::Forced(forced) => tokens.extend(forced),
            _ => {}
        }
    }
    assert_eq!(tokens.len(), 20);
    let mut runs = 0;
    while let [first, ..] = &tokens[..] {
        let run = first.run;
        assert!(
            tokens[..run]
                .iter()
                .all(|t| (t.run, t.at) == (run, first.at))
        );
        runs += 1;
        tokens.drain(..run);
    }
    runs
}

#[test]
fn text_that_a_grammar_forces_is_part_of_its_steps_run() {
    // The longer steps take, the longer the engine waits for forced text.
    let (fixture, permits) = Fixture::gated(EngineConfig::default(), 1024);
    let steps = thread::spawn(move || {
        while permits.send(()).is_ok() {
            thread::sleep(Duration::from_millis(20));
        }
    });
    // Text that is late on a busy machine is a run of its own.
    let fewest = (0..50).map(|_| runs(&fixture)).find(|&runs| runs < 20);
    let fewest = fewest.expect("forced text is part of a run");
    assert!(fewest >= 10, "{fewest} runs");
    drop(fixture);
    steps.join().unwrap();
}

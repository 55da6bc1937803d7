//! What the device was given and has not been asked for.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::Receiver;
use std::time::Instant;

use hearth_forward::KvCopy;

use super::{Landing, Order, panic_text};
use crate::executor::{Choice, Executor, ForwardBatch, Logits};

const LOST: &str = "the device is lost";

/// The executor, and its orders that have not landed.
pub(super) struct Flights<E: Executor> {
    pub executor: E,
    flights: VecDeque<Flight<E::Flight>>,
}

struct Flight<F> {
    order: Order,
    copied: Result<(), String>,
    forward: Result<Forward<F>, String>,
    /// Whether the device was lost before it came.
    refused: bool,
}

/// A forward that was launched, if one was wanted, and what it owes.
struct Forward<F> {
    flight: Option<F>,
    tokens: usize,
    undecided: usize,
}

impl<E: Executor> Flights<E> {
    pub fn new(executor: E) -> Self {
        Self {
            executor,
            flights: VecDeque::new(),
        }
    }

    /// Has the copies of `order` made, and gives its forward to the device.
    pub fn launch(&mut self, order: Order) {
        if self.executor.is_lost() {
            return self.refuse(order);
        }
        let before = self.flights.back().map(|before| before.forward.is_ok());
        let copied = copy(&mut self.executor, &order.copies);
        let forward = if order.forward.carried.is_empty() || before == Some(true) {
            launch(&mut self.executor, &order.forward, &order.choices)
        } else {
            Err("the forward before it failed".to_owned())
        };
        self.flights.push_back(Flight {
            order,
            copied,
            forward,
            refused: false,
        });
    }

    /// Takes an order that a lost device cannot carry out.
    pub fn refuse(&mut self, order: Order) {
        self.flights.push_back(Flight {
            copied: match order.copies.is_empty() {
                true => Ok(()),
                false => Err(LOST.to_owned()),
            },
            forward: Err(LOST.to_owned()),
            refused: true,
            order,
        });
    }

    /// Waits for the oldest order. If the device is lost, all of them land.
    pub fn land(&mut self) -> Vec<Landing> {
        let mut landings: Vec<Landing> = Vec::new();
        while landings.last().is_none_or(|landing| landing.lost)
            && let Some(flight) = self.flights.pop_front()
        {
            let behind_lost = !landings.is_empty();
            landings.push(self.land_one(flight, behind_lost));
        }
        landings
    }

    fn land_one(&mut self, flight: Flight<E::Flight>, behind_lost: bool) -> Landing {
        let Flight {
            order,
            copied,
            forward,
            refused,
        } = flight;
        let gone = behind_lost || self.executor.is_lost();
        let logits = forward.and_then(|forward| match gone {
            // What a dead driver says to being rid of it does not matter.
            true => guarded(|| {
                drop(forward);
                Err(LOST)
            }),
            false => read(&mut self.executor, forward, &order.forward),
        });
        if let Err(error) = &logits
            && !refused
        {
            let batch = &order.forward;
            let (requests, tokens) = (batch.sequences.len(), batch.tokens.len());
            tracing::error!(requests, tokens, "forward failed: {error}");
        }
        Landing {
            copied,
            logits,
            lost: refused || gone || self.executor.is_lost(),
            order,
            at: Instant::now(),
        }
    }
}

/// Does `work`; a panic is an error like others, as drivers panic where they should return
/// one.
fn guarded<T, E: ToString>(work: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work))
        .map_err(|panic| format!("the model panicked: {}", panic_text(&*panic)))
        .and_then(|result| result.map_err(|error| error.to_string()))
}

/// Copies between device and host.
fn copy(executor: &mut impl Executor, copies: &[KvCopy]) -> Result<(), String> {
    guarded(|| copies.iter().try_for_each(|copy| executor.copy(copy)))
        .inspect_err(|error| tracing::error!("copying KV failed: {error}"))
}

fn launch<E: Executor>(
    executor: &mut E,
    batch: &ForwardBatch,
    choices: &Receiver<Vec<Choice>>,
) -> Result<Forward<E::Flight>, String> {
    if batch.tokens.is_empty() {
        return Ok(Forward {
            flight: None,
            tokens: 0,
            undecided: 0,
        });
    }
    // Of who does not ask, too.
    let (mut tokens, mut undecided) = (batch.choice_rows.len(), 0);
    let mut ask = || {
        // An engine that is gone reads no answer either.
        let nothing = |_| vec![Choice::Nothing; batch.choice_rows.len()];
        let choices = choices.recv().unwrap_or_else(nothing);
        let count = |is: fn(&Choice) -> bool| choices.iter().filter(|choice| is(choice)).count();
        tokens = count(|choice| matches!(choice, Choice::Token(_)));
        undecided = count(|choice| matches!(choice, Choice::Logits));
        choices
    };
    let flight = guarded(|| executor.launch(batch, &mut ask))?;
    Ok(Forward {
        flight: Some(flight),
        tokens,
        undecided,
    })
}

/// What `forward` of `batch` gives; a wrong shape is caught before anybody reads it.
fn read<E: Executor>(
    executor: &mut E,
    forward: Forward<E::Flight>,
    batch: &ForwardBatch,
) -> Result<Logits, String> {
    let Forward {
        flight,
        tokens,
        undecided,
    } = forward;
    let vocab = executor.limits().vocab_size;
    let Some(flight) = flight else {
        return Ok(Logits::none(executor.limits()));
    };
    let logits = guarded(|| executor.land(flight))?;
    let (given, rows) = (logits.values.len(), batch.logit_rows.len());
    if logits.vocab != vocab || given != rows * vocab {
        let width = logits.vocab;
        return Err(format!(
            "the model gave {given} logits, {width} a row, for {rows} rows of {vocab}"
        ));
    }
    let (given, rows) = (logits.hidden.len(), batch.hidden_rows.len());
    if (rows == 0) != (given == 0) || (rows > 0 && !given.is_multiple_of(rows)) {
        return Err(format!(
            "the model gave {given} values of hidden states for {rows} rows"
        ));
    }
    let given = logits.chosen.len();
    let known = |token: &Option<u32>| token.is_none_or(|token| (token as usize) < vocab);
    if given != tokens || !logits.chosen.iter().all(known) {
        return Err(format!(
            "the model chose {given} tokens for {tokens} rows, or some that there are not"
        ));
    }
    let given = logits.undecided.len();
    if given != undecided * vocab {
        return Err(format!(
            "the model gave {given} logits for {undecided} undecided rows of {vocab}"
        ));
    }
    Ok(logits)
}

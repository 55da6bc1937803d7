//! How much a rendering may make. The number of instructions bounds neither memory nor time: a
//! template that doubles a string thirty times takes a gigabyte in a hundred instructions. So each
//! value that a template makes is measured, and each text that it writes is counted.
//!
//! A rendering runs on one thread from beginning to end, so its account is that thread's.

use std::cell::RefCell;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use minijinja::value::{DynObject, ObjectRepr, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// Largest value whatever the request: long conversations are a few hundred kilobytes.
const VALUE_BYTES: usize = 8 << 20;
/// Largest value for each byte of the request: each character may become an item of a list.
const VALUE_PER_INPUT: usize = 2 * NODE;
/// Largest value of any request.
const MAX_VALUE_BYTES: usize = 256 << 20;
/// Text that is written altogether, in values: macros write what others write again.
const WRITTEN_VALUES: usize = 4;
/// Bytes of all values that are made: for any request, for each byte of it, because templates that
/// add each message to a text copy the text each time, and at most.
const MADE_BYTES: usize = 256 << 20;
const MADE_PER_INPUT: usize = 2048;
const MAX_MADE_BYTES: usize = 1 << 30;
/// From here on one rendering at a time goes on, so that many of them do not fill the memory.
const HEAVY_BYTES: usize = 64 << 20;
static HEAVY: Mutex<()> = Mutex::new(());
/// Bytes of a value beside its text.
pub(super) const NODE: usize = 32;
/// Lists and objects within one another. A request's JSON has at most 128.
const MAX_DEPTH: usize = 250;
/// Thousand times the time of a long conversation.
const TIME: Duration = Duration::from_secs(10);
/// The clock is read once for so many values and operations.
const CLOCK: u32 = 256;

/// The bound that a template did not keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exceeded {
    Value(usize),
    Written(usize),
    Made(usize),
    Depth,
    Time,
}

impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exceeded::Value(bytes) => write!(f, "it made a value of more than {bytes} bytes"),
            Exceeded::Written(bytes) => write!(f, "it wrote more than {bytes} bytes"),
            Exceeded::Made(bytes) => {
                write!(f, "it made values of more than {bytes} bytes altogether")
            }
            Exceeded::Depth => write!(
                f,
                "it made lists or objects that are nested more than {MAX_DEPTH} deep"
            ),
            Exceeded::Time => write!(f, "it did not end within {} seconds", TIME.as_secs()),
        }
    }
}

impl std::error::Error for Exceeded {}

impl From<Exceeded> for Error {
    fn from(exceeded: Exceeded) -> Self {
        Error::new(ErrorKind::InvalidOperation, exceeded.to_string()).with_source(exceeded)
    }
}

struct Budget {
    /// Bytes of the largest value.
    value: usize,
    written: usize,
    made: usize,
    most_made: usize,
    until: Instant,
    since_clock: u32,
    /// Held by the one rendering that goes on beyond [`HEAVY_BYTES`].
    heavy: Option<MutexGuard<'static, ()>>,
}

thread_local! {
    static BUDGET: RefCell<Option<Budget>> = const { RefCell::new(None) };
}

/// Runs `render` with a budget for a request of `input` bytes.
pub(super) fn with<R>(input: usize, render: impl FnOnce() -> R) -> R {
    struct Clear;
    impl Drop for Clear {
        fn drop(&mut self) {
            BUDGET.with(|budget| *budget.borrow_mut() = None);
        }
    }
    let _clear = Clear;
    let budget = Budget {
        value: VALUE_BYTES
            .saturating_add(input.saturating_mul(VALUE_PER_INPUT))
            .min(MAX_VALUE_BYTES),
        written: 0,
        made: 0,
        most_made: MADE_BYTES
            .saturating_add(input.saturating_mul(MADE_PER_INPUT))
            .min(MAX_MADE_BYTES),
        until: Instant::now() + TIME,
        since_clock: 0,
        heavy: None,
    };
    BUDGET.with(|place| *place.borrow_mut() = Some(budget));
    render()
}

/// Outside of a rendering nothing is bounded: constants are small.
fn account(change: impl FnOnce(&mut Budget) -> Result<(), Exceeded>) -> Result<(), Error> {
    BUDGET.with(|budget| match budget.borrow_mut().as_mut() {
        Some(budget) => change(budget).map_err(Error::from),
        None => Ok(()),
    })
}

/// Bytes of the largest value that may be made.
pub(super) fn largest() -> usize {
    BUDGET.with(|budget| {
        budget
            .borrow()
            .as_ref()
            .map_or(VALUE_BYTES, |own| own.value)
    })
}

/// Counts an operation, and now and then looks at the clock.
pub(super) fn tick() -> Result<(), Error> {
    account(|budget| {
        budget.since_clock += 1;
        if budget.since_clock < CLOCK {
            return Ok(());
        }
        budget.since_clock = 0;
        if Instant::now() < budget.until {
            Ok(())
        } else {
            Err(Exceeded::Time)
        }
    })
}

/// Counts a text that is about to be written.
pub(super) fn write(bytes: usize) -> Result<(), Error> {
    account(|budget| {
        budget.written = budget.written.saturating_add(bytes);
        let most = budget.value.saturating_mul(WRITTEN_VALUES);
        if budget.written <= most {
            Ok(())
        } else {
            Err(Exceeded::Written(most))
        }
    })
}

/// Counts a value of `bytes` that is about to be made, or has just been.
pub(super) fn make(bytes: usize) -> Result<(), Error> {
    tick()?;
    account(|budget| {
        if bytes > budget.value {
            return Err(Exceeded::Value(budget.value));
        }
        budget.made = budget.made.saturating_add(bytes);
        if budget.made > budget.most_made {
            return Err(Exceeded::Made(budget.most_made));
        }
        if budget.made > HEAVY_BYTES && budget.heavy.is_none() {
            budget.heavy = Some(HEAVY.lock().unwrap_or_else(PoisonError::into_inner));
            // The wait is not this template's.
            budget.until = Instant::now() + TIME;
        }
        Ok(())
    })
}

/// Checks a value that the template has just made, whose parts were checked before. What would be
/// computed at each use becomes a list: otherwise layers of such values pile up.
pub(super) fn made(value: Value) -> Result<Value, Error> {
    tick()?;
    if let Some(text) = value.as_str() {
        make(text.len())?;
        return Ok(value);
    }
    let Some(object) = value.as_object() else {
        return Ok(value);
    };
    let value = match object.repr() {
        ObjectRepr::Iterable => Value::from(items(value.try_iter()?)?),
        ObjectRepr::Seq | ObjectRepr::Map => {
            make(object.enumerator_len().unwrap_or(0).saturating_mul(NODE))?;
            value
        }
        _ => value,
    };
    measure(&value, 0)?;
    Ok(value)
}

/// Checks a value that becomes part of a namespace. None may be another namespace: they are the
/// only values that change, and could contain themselves.
pub(super) fn stored(value: Value) -> Result<Value, Error> {
    measure(&value, 1)?;
    Ok(value)
}

/// `items` as a list, as long as it is not too long.
pub(super) fn items(items: impl Iterator<Item = Value>) -> Result<Vec<Value>, Error> {
    let most = largest();
    let mut list = Vec::new();
    for item in items {
        if list.len() >= most / NODE {
            return Err(Exceeded::Value(most).into());
        }
        if item.kind() == ValueKind::Invalid {
            // Iterators report their errors as values.
            return Err(Error::new(ErrorKind::InvalidOperation, item.to_string()));
        }
        tick()?;
        list.push(item);
    }
    make(list.len() * NODE)?;
    Ok(list)
}

/// Adds up `value` as it would be written, where parts that are shared count each time.
fn measure(value: &Value, depth: usize) -> Result<(), Error> {
    let most = largest();
    let mut left = most;
    weigh(value, depth, &mut left).map_err(|error| match error {
        Weighed::Large => Exceeded::Value(most).into(),
        Weighed::Deep => Exceeded::Depth.into(),
        Weighed::Namespace => Error::new(
            ErrorKind::InvalidOperation,
            "a namespace cannot be part of another value",
        ),
        Weighed::Other(error) => error,
    })
}

enum Weighed {
    Large,
    Deep,
    Namespace,
    Other(Error),
}

/// The bytes of `value`, which are subtracted from `left`.
fn weigh(value: &Value, depth: usize, left: &mut usize) -> Result<(), Weighed> {
    let bytes = value.as_bytes().map_or(0, <[u8]>::len);
    *left = left.checked_sub(NODE + bytes).ok_or(Weighed::Large)?;
    let Some(object) = value.as_object() else {
        return Ok(());
    };
    tick().map_err(Weighed::Other)?;
    if depth > 0 && is_namespace(object) {
        return Err(Weighed::Namespace);
    }
    if depth >= MAX_DEPTH {
        return Err(Weighed::Deep);
    }
    match object.repr() {
        ObjectRepr::Map => {
            for (key, value) in object.try_iter_pairs().into_iter().flatten() {
                weigh(&key, depth + 1, left)?;
                weigh(&value, depth + 1, left)?;
            }
        }
        ObjectRepr::Seq | ObjectRepr::Iterable => {
            for item in object.try_iter().into_iter().flatten() {
                weigh(&item, depth + 1, left)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// The type is private to minijinja, and its name all that can be seen.
fn is_namespace(object: &DynObject) -> bool {
    object.type_name().ends_with("::Namespace")
}

/// `value` as a text of at most [`largest`] bytes.
pub(super) fn text(values: &[&Value]) -> Result<String, Error> {
    struct Bounded {
        text: String,
        most: usize,
    }
    impl fmt::Write for Bounded {
        fn write_str(&mut self, part: &str) -> fmt::Result {
            if self.most - self.text.len() < part.len() {
                return Err(fmt::Error);
            }
            self.text.push_str(part);
            Ok(())
        }
    }
    let most = largest();
    let mut written = Bounded {
        text: String::new(),
        most,
    };
    for value in values {
        if fmt::Write::write_fmt(&mut written, format_args!("{value}")).is_err() {
            return Err(Exceeded::Value(most).into());
        }
    }
    make(written.text.len())?;
    Ok(written.text)
}

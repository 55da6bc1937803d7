//! A bound on warnings, errors and refusals of one kind, because a client can cause some of them as often as
//! it likes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Filter};

/// The name of events below a warning that are bounded, too, because clients cause them.
pub const BOUNDED: &str = "bounded";

/// Lines of one kind in a period; further ones are left out.
const MOST: u32 = 100;
const PERIOD: Duration = Duration::from_secs(10);

/// Lets the first warnings, errors and [`BOUNDED`] lines of each kind through in each period. The place in the code
/// that logs a line is its kind.
#[derive(Clone, Default)]
pub struct RateLimit {
    kinds: Arc<Mutex<HashMap<Identifier, Period>>>,
    left_out: Arc<AtomicU64>,
}

struct Period {
    began: Instant,
    lines: u32,
}

impl RateLimit {
    /// Lines that were left out.
    pub fn left_out(&self) -> u64 {
        self.left_out.load(Ordering::Relaxed)
    }

    fn lets_through(&self, kind: Identifier, now: Instant) -> bool {
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let period = kinds.entry(kind).or_insert(Period {
            began: now,
            lines: 0,
        });
        if now.duration_since(period.began) >= PERIOD {
            *period = Period {
                began: now,
                lines: 0,
            };
        }
        period.lines = period.lines.saturating_add(1);
        period.lines <= MOST
    }
}

impl<S: Subscriber> Filter<S> for RateLimit {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::WARN && metadata.name() != BOUNDED {
            return true;
        }
        let through = self.lets_through(metadata.callsite(), Instant::now());
        if !through {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
        through
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_has_its_lines_in_each_period_and_takes_none_of_another() {
        let limit = RateLimit::default();
        let (a, b) = (
            tracing::callsite::Identifier(&A),
            tracing::callsite::Identifier(&B),
        );
        let began = Instant::now();
        let through = (0..MOST + 50).filter(|_| limit.lets_through(a.clone(), began));
        assert_eq!(through.count(), MOST as usize);
        assert!(limit.lets_through(b, began));
        assert!(!limit.lets_through(a.clone(), began + PERIOD / 2));
        assert!(limit.lets_through(a, began + PERIOD));
    }

    struct Place(u8);

    static A: Place = Place(0);
    static B: Place = Place(1);

    impl tracing::Callsite for Place {
        fn set_interest(&self, _: tracing::subscriber::Interest) {}
        fn metadata(&self) -> &Metadata<'_> {
            unreachable!("place {} is compared by its address", self.0)
        }
    }
}

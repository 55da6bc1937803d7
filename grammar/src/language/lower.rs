//! Turns patterns into expressions. Anchors and look-around are conditions on the rest of the
//! text, so a part is translated together with all that may follow it.

use super::expr::{Id, Store, TooLarge};
use super::part::Part;

/// Why a pattern has no expression.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    TooLarge,
    /// An anchor or look-around at a place where it is not supported.
    Place(&'static str),
}

impl From<TooLarge> for Refusal {
    fn from(_: TooLarge) -> Self {
        Self::TooLarge
    }
}

/// The most copies that a repetition with look-around in it is written out as.
const MAX_COPIES: u32 = 64;
/// The most expressions that parts are translated to.
const MAX_WORK: usize = 20_000;

/// The texts in which `part` matches anywhere.
pub(super) fn search(store: &mut Store, part: &Part) -> Result<Id, Refusal> {
    let mut lower = Lower { store, work: 0 };
    let at_start = lower.then(part, Store::ANY, true)?;
    let later = lower.then(part, Store::ANY, false)?;
    let some = lower.store.class(vec![(0, 0xd7ff), (0xe000, 0x10_FFFF)]);
    let some = lower.store.concat(some, Store::ANY);
    let later = lower.store.concat(some, later);
    Ok(lower.store.or(vec![at_start, later]))
}

struct Lower<'a> {
    store: &'a mut Store,
    work: usize,
}

impl Lower<'_> {
    /// The texts that begin with `part` and go on as `rest`. `start` says whether nothing is
    /// before them.
    fn then(&mut self, part: &Part, rest: Id, start: bool) -> Result<Id, Refusal> {
        self.work += 1;
        if self.work > MAX_WORK || self.store.is_full() {
            return Err(Refusal::TooLarge);
        }
        if let Some(id) = self.plain(part) {
            return Ok(self.store.concat(id, rest));
        }
        match part {
            Part::Class { ranges, .. } => {
                let id = self.store.class(ranges.clone());
                Ok(self.store.concat(id, rest))
            }
            Part::Start => Ok(if start { rest } else { Store::NOTHING }),
            Part::End => Ok(self.store.and(vec![rest, Store::EMPTY])),
            Part::Look {
                ahead: false,
                negative,
                part,
            } => self.behind(part, rest, start, *negative),
            Part::Look { negative, part, .. } => {
                let mut ahead = self.then(part, Store::ANY, start)?;
                if *negative {
                    ahead = self.store.not(ahead);
                }
                Ok(self.store.and(vec![ahead, rest]))
            }
            Part::Either(branches) => {
                let branches = branches.iter().map(|part| self.then(part, rest, start));
                let branches = branches.collect::<Result<_, _>>()?;
                Ok(self.store.or(branches))
            }
            Part::Concat(parts) => self.sequence(parts, rest, start),
            Part::Repeat { part, min, max } => {
                let max = max.filter(|&max| max <= MAX_COPIES);
                let max = max.ok_or(Refusal::Place("within a repetition without a small bound"))?;
                let copy = Part::clone(part);
                let mut copies = vec![copy.clone(); *min as usize];
                let mut all = Vec::new();
                for _ in *min..=max {
                    all.push(self.sequence(&copies, rest, start)?);
                    copies.push(copy.clone());
                }
                Ok(self.store.or(all))
            }
        }
    }

    fn sequence(&mut self, parts: &[Part], rest: Id, start: bool) -> Result<Id, Refusal> {
        let Some((first, others)) = parts.split_first() else {
            return Ok(rest);
        };
        let is_condition = matches!(first, Part::Start | Part::End | Part::Look { .. });
        if is_condition {
            let rest = self.sequence(others, rest, start)?;
            return self.then(first, rest, start);
        }
        if start && may_be_empty(first) && others.iter().any(needs_start) {
            // It depends on what the first part matched whether something is before the rest.
            return Err(Refusal::Place("behind a part that may be empty"));
        }
        let rest = self.sequence(others, rest, start && may_be_empty(first))?;
        self.then(first, rest, start)
    }

    /// Look-behind is supported at the beginning of a text only, where nothing is behind.
    fn behind(
        &mut self,
        part: &Part,
        rest: Id,
        start: bool,
        negative: bool,
    ) -> Result<Id, Refusal> {
        if rest == Store::NOTHING {
            return Ok(rest);
        }
        if !start {
            return Err(Refusal::Place("as look-behind within a text"));
        }
        let matches = self.then(part, Store::EMPTY, true)?;
        let holds = self.store.is_nullable(matches) != negative;
        Ok(if holds { rest } else { Store::NOTHING })
    }

    /// The expression of a part without conditions.
    fn plain(&mut self, part: &Part) -> Option<Id> {
        match part {
            Part::Class { ranges, .. } => Some(self.store.class(ranges.clone())),
            Part::Concat(parts) => {
                let mut id = Store::EMPTY;
                for part in parts.iter().rev() {
                    let first = self.plain(part)?;
                    id = self.store.concat(first, id);
                }
                Some(id)
            }
            Part::Either(branches) => {
                let list: Option<Vec<Id>> = branches.iter().map(|part| self.plain(part)).collect();
                list.map(|list| self.store.or(list))
            }
            Part::Repeat { part, min, max } => {
                let inner = self.plain(part)?;
                Some(self.store.repeat(inner, *min, *max))
            }
            Part::Start | Part::End | Part::Look { .. } => None,
        }
    }
}

fn may_be_empty(part: &Part) -> bool {
    match part {
        Part::Class { .. } => false,
        Part::Start | Part::End | Part::Look { .. } => true,
        Part::Concat(parts) => parts.iter().all(may_be_empty),
        Part::Either(branches) => branches.iter().any(may_be_empty),
        Part::Repeat { part, min, .. } => *min == 0 || may_be_empty(part),
    }
}

/// True if it matters for `part` that nothing is before it.
fn needs_start(part: &Part) -> bool {
    match part {
        Part::Class { .. } | Part::End => false,
        Part::Start => true,
        Part::Look { ahead, part, .. } => !ahead || needs_start(part),
        Part::Concat(parts) => parts.iter().any(needs_start),
        Part::Either(branches) => branches.iter().any(needs_start),
        Part::Repeat { part, .. } => needs_start(part),
    }
}

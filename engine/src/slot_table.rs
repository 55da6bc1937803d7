//! The slot table of a batch, in which every request keeps its place from step to step. So a
//! step writes the new entries only: one slot for a decode row, whatever its context.

/// The slot tables of a batch, with the slots of a request at the same places of both.
#[derive(Debug)]
pub(crate) struct Tables<'a> {
    pub slots: &'a mut Vec<u32>,
    /// Empty where the model has no window slots.
    pub window: &'a mut Vec<u32>,
}

/// Entries reserved for the tokens that a request generates before its span has to move, in
/// addition to an eighth of the slots that the request has.
const RESERVE: usize = 64;

/// The place of a request's slots in a slot table.
#[derive(Debug, Default)]
pub(crate) struct TableSpan {
    /// The number of the layout that the span belongs to; 0 for none.
    layout: u64,
    start: usize,
    /// Entries from `start` on that belong to this span.
    reserved: usize,
    /// How many of the first entries equal the slots of the request.
    written: usize,
}

impl TableSpan {
    /// The slots of the request have changed, from its position `first` on.
    pub fn invalidate_from(&mut self, first: usize) {
        self.written = self.written.min(first);
    }
}

/// The layout of the spans in one slot table. The spans of requests that ended leave gaps;
/// when the gaps take up too much of the table, a new layout begins and every span is placed
/// anew.
#[derive(Debug)]
pub(crate) struct TableLayout {
    number: u64,
    /// Entries reserved by the spans that the current batch uses.
    used: usize,
}

impl Default for TableLayout {
    fn default() -> Self {
        Self { number: 1, used: 0 }
    }
}

impl TableLayout {
    /// Begins the next batch, and a new layout if the gaps take up too much of the tables.
    pub fn begin(&mut self, tables: Tables<'_>) {
        if tables.slots.len() > self.used + self.used / 2 + 16 * RESERVE {
            tables.slots.clear();
            tables.window.clear();
            self.number += 1;
        }
        self.used = 0;
    }

    /// Writes the first `context` of `slots`, and of the slots `window` if there are any, to the
    /// place of `span`. Returns the index at which they begin.
    pub fn write(
        &mut self,
        tables: Tables<'_>,
        span: &mut TableSpan,
        slots: &[u32],
        window: Option<&[u32]>,
        context: usize,
    ) -> usize {
        let table = tables.slots;
        if span.layout != self.number || span.reserved < context {
            *span = TableSpan {
                layout: self.number,
                start: table.len(),
                // A prompt has all of its slots before it is computed.
                reserved: slots.len() + slots.len() / 8 + RESERVE,
                written: 0,
            };
            // Entries that are not written yet are never read, but must be valid slots.
            table.resize(span.start + span.reserved, 0);
            if window.is_some() {
                tables.window.resize(table.len(), 0);
            }
        }
        let TableSpan {
            start,
            reserved,
            written,
            ..
        } = *span;
        if written < context {
            let place = start + written..start + context;
            table[place.clone()].copy_from_slice(&slots[written..context]);
            if let Some(window) = window {
                tables.window[place].copy_from_slice(&window[written..context]);
            }
            span.written = context;
        }
        self.used += reserved;
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_the_slots_of_its_request_while_requests_grow_change_and_end() {
        let mut random = 1_u64;
        let mut below = move |bound: usize| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
            (random >> 33) as usize % bound
        };
        let (mut layout, mut table) = (TableLayout::default(), Vec::new());
        let mut window_table = Vec::new();
        let mut requests: Vec<(Vec<u32>, TableSpan)> = Vec::new();
        let mut moves = 0;
        for step in 0..3000 {
            let new = |len: usize| (0..len).map(|i| (step * 1000 + i) as u32).collect();
            match below(20) {
                0 => requests.push((new(1 + below(200)), TableSpan::default())),
                1 if !requests.is_empty() => drop(requests.swap_remove(below(requests.len()))),
                2 if !requests.is_empty() => {
                    let index = below(requests.len());
                    let (slots, span) = &mut requests[index];
                    let first = below(slots.len());
                    slots[first..].iter_mut().for_each(|slot| *slot += 7);
                    span.invalidate_from(first);
                }
                _ => {}
            }
            let before = layout.number;
            layout.begin(Tables {
                slots: &mut table,
                window: &mut window_table,
            });
            moves += layout.number - before;
            for (slots, span) in &mut requests {
                // Some requests are not in this step, and some have not computed all of their tokens.
                if below(10) > 0 {
                    slots.extend((below(3) > 0).then_some(step as u32));
                    let context = slots.len() - below(slots.len().min(3));
                    // The window slots are others.
                    let window: Vec<u32> = slots.iter().map(|slot| slot + 1_000_000).collect();
                    let tables = Tables {
                        slots: &mut table,
                        window: &mut window_table,
                    };
                    let start = layout.write(tables, span, slots, Some(&window), context);
                    assert_eq!(table[start..start + context], slots[..context]);
                    assert_eq!(window_table[start..start + context], window[..context]);
                }
            }
            let used: usize = requests
                .iter()
                .map(|(slots, _)| slots.len() + 2 * RESERVE)
                .sum();
            assert!(table.len() <= 4 * (used + 16 * RESERVE), "gaps are bounded");
        }
        assert!((2..1500).contains(&moves), "{moves}");
    }
}

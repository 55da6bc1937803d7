//! Slot tables that stay where they are from step to step, so that a step writes what is new
//! in them: a decode row's is one slot, whatever its context.

/// Room for what a request generates before its row has to move, beside an eighth of what it
/// has.
const ROOM: usize = 64;

/// Where a request's slots are in the table of the batches.
#[derive(Debug, Default)]
pub(crate) struct Row {
    /// Of which layout; none has this number 0.
    layout: u64,
    start: usize,
    room: usize,
    /// Slots of it that are as the request has them.
    written: usize,
}

impl Row {
    /// The request has other slots now from its `first` on.
    pub fn changed(&mut self, first: usize) {
        self.written = self.written.min(first);
    }
}

/// The rows of one table. Those of requests that are gone leave gaps, and when these take
/// up too much, all rows are laid out anew.
#[derive(Debug)]
pub(super) struct Layout {
    number: u64,
    /// Entries of rows that the latest batch uses.
    used: usize,
}

impl Default for Layout {
    fn default() -> Self {
        Self { number: 1, used: 0 }
    }
}

impl Layout {
    /// Begins the next batch.
    pub fn begin(&mut self, table: &mut Vec<u32>) {
        if table.len() > self.used + self.used / 2 + 16 * ROOM {
            table.clear();
            self.number += 1;
        }
        self.used = 0;
    }

    /// Writes the first `context` of `slots` to `row`, and returns where it begins.
    pub fn write(
        &mut self,
        table: &mut Vec<u32>,
        row: &mut Row,
        slots: &[u32],
        context: usize,
    ) -> usize {
        if row.layout != self.number || row.room < context {
            *row = Row {
                layout: self.number,
                start: table.len(),
                // A prompt has all of its slots before it is computed.
                room: slots.len() + slots.len() / 8 + ROOM,
                written: 0,
            };
            // What is not written yet is read by nobody, but must be a slot.
            table.resize(row.start + row.room, 0);
        }
        let Row {
            start,
            room,
            written,
            ..
        } = *row;
        if written < context {
            table[start + written..start + context].copy_from_slice(&slots[written..context]);
            row.written = context;
        }
        self.used += room;
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_slots_of_its_request_however_these_grow_change_and_go() {
        let mut random = 1_u64;
        let mut below = move |bound: usize| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
            (random >> 33) as usize % bound
        };
        let (mut layout, mut table) = (Layout::default(), Vec::new());
        let mut requests: Vec<(Vec<u32>, Row)> = Vec::new();
        let mut moves = 0;
        for step in 0..3000 {
            let new = |len: usize| (0..len).map(|i| (step * 1000 + i) as u32).collect();
            match below(20) {
                0 => requests.push((new(1 + below(200)), Row::default())),
                1 if !requests.is_empty() => drop(requests.swap_remove(below(requests.len()))),
                2 if !requests.is_empty() => {
                    let index = below(requests.len());
                    let (slots, row) = &mut requests[index];
                    let first = below(slots.len());
                    slots[first..].iter_mut().for_each(|slot| *slot += 7);
                    row.changed(first);
                }
                _ => {}
            }
            let before = layout.number;
            layout.begin(&mut table);
            moves += layout.number - before;
            for (slots, row) in &mut requests {
                // Some sit a step out, and some have not computed all.
                if below(10) > 0 {
                    slots.extend((below(3) > 0).then_some(step as u32));
                    let context = slots.len() - below(slots.len().min(3));
                    let start = layout.write(&mut table, row, slots, context);
                    assert_eq!(table[start..start + context], slots[..context]);
                }
            }
            let used: usize = requests
                .iter()
                .map(|(slots, _)| slots.len() + 2 * ROOM)
                .sum();
            assert!(table.len() <= 4 * (used + 16 * ROOM), "gaps are bounded");
        }
        assert!((2..1500).contains(&moves), "{moves}");
    }
}

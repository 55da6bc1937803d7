//! Copies of slots between two arrays in the host's memory.

/// Rows of one array and where they go in another one, in as few copies as possible: neighbours
/// that stay neighbours are copied together.
pub struct SlotRuns {
    runs: Vec<Run>,
    row_bytes: usize,
}

#[derive(Debug, PartialEq, Eq)]
struct Run {
    from: usize,
    to: usize,
    rows: usize,
}

impl SlotRuns {
    /// Copies of the rows `from[i]` to the rows `to[i]`.
    pub fn new(from: &[u32], to: &[u32], row_bytes: usize) -> Self {
        let mut runs: Vec<Run> = Vec::new();
        for (from, to) in from.iter().zip(to) {
            let (from, to) = (*from as usize, *to as usize);
            match runs.last_mut() {
                Some(run) if run.from + run.rows == from && run.to + run.rows == to => {
                    run.rows += 1;
                }
                _ => runs.push(Run { from, to, rows: 1 }),
            }
        }
        Self { runs, row_bytes }
    }

    /// Copies the rows of one plane.
    ///
    /// # Panics
    /// A row lies outside its array.
    pub fn copy(&self, from: &[u8], to: &mut [u8]) {
        for run in &self.runs {
            let bytes = run.rows * self.row_bytes;
            to[run.to * self.row_bytes..][..bytes]
                .copy_from_slice(&from[run.from * self.row_bytes..][..bytes]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_copied_together_and_every_row_arrives() {
        let (from, to) = ([3, 4, 5, 0, 1, 7], [0, 1, 2, 3, 5, 6]);
        let runs = SlotRuns::new(&from, &to, 2);
        let sizes: Vec<usize> = runs.runs.iter().map(|run| run.rows).collect();
        assert_eq!(sizes, [3, 1, 1, 1]);
        let source: Vec<u8> = (0..16).collect();
        let mut target = [99; 14];
        runs.copy(&source, &mut target);
        assert_eq!(target, [6, 7, 8, 9, 10, 11, 0, 1, 99, 99, 2, 3, 14, 15]);
    }
}

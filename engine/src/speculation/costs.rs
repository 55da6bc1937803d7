//! How long steps take by their number of rows, as measured.

/// Rows up to this number are measured each on their own; above, four ranges share an octave.
const EXACT: usize = 8;
const RANGES: usize = EXACT + 4 * 10;

/// The weight of a new measurement: one part in `WEIGHT_STEPS` for each step since the one before
/// it, within these bounds.
const LEAST_WEIGHT: f32 = 0.1;
const MOST_WEIGHT: f32 = 0.5;
const WEIGHT_STEPS: f32 = 512.0;

/// A time is not used any more after this many further steps, because contexts have grown or
/// other requests run.
const STALE_AFTER: u64 = 2048;

/// How often the time without drafts is measured again: once in this many steps.
const BASE_EVERY: u64 = 256;

/// Until a number of rows was measured, each row beyond the measured ones is assumed to cost
/// this part of what a row of the measured step costs. It is less than most devices need, so
/// that drafts are tried.
const UNKNOWN_ROW: f32 = 0.25;

/// No more rows are tried at once than this many times the most that were measured, and this
/// many more.
const FURTHEST: f32 = 1.5;
const FURTHEST_ROWS: f32 = 4.0;

/// The times of steps without prefill, by their rows.
#[derive(Debug)]
pub(crate) struct StepCosts {
    ranges: [Option<Measured>; RANGES],
    /// Steps recorded.
    steps: u64,
}

#[derive(Clone, Copy, Debug)]
struct Measured {
    seconds: f32,
    /// The mean number of rows of the measured steps.
    rows: f32,
    at: u64,
}

impl Measured {
    /// The time that each row takes between this number of rows and that of `above`.
    fn time_of_a_row_until(&self, above: &Self) -> f32 {
        (above.seconds - self.seconds).max(0.0) / (above.rows - self.rows)
    }
}

impl StepCosts {
    pub fn new() -> Self {
        Self {
            ranges: [None; RANGES],
            steps: 0,
        }
    }

    /// A step with `rows` rows took `seconds` from its scheduling to the end of its sampling.
    pub fn record(&mut self, rows: usize, seconds: f32) {
        self.steps += 1;
        let at = self.steps;
        let rows_now = rows as f32;
        let measured = &mut self.ranges[range_of(rows)];
        match measured {
            Some(known) if known.at + STALE_AFTER > at => {
                // A step that another process delayed must not count as its rows' cost.
                let seconds = seconds.min(2.0 * known.seconds);
                let weight = (at - known.at) as f32 / WEIGHT_STEPS;
                let weight = weight.clamp(LEAST_WEIGHT, MOST_WEIGHT);
                known.seconds += weight * (seconds - known.seconds);
                known.rows += weight * (rows_now - known.rows);
                known.at = at;
            }
            _ => {
                *measured = Some(Measured {
                    seconds,
                    rows: rows_now,
                    at,
                });
            }
        }
    }

    /// The time of a step with `rows` rows and no drafts. `None` if it has to be measured (again).
    pub fn base(&self, rows: usize) -> Option<f32> {
        let measured = self.ranges[range_of(rows)]?;
        if measured.at + BASE_EVERY <= self.steps {
            return None;
        }
        // The measured steps of the range may have had other numbers of rows.
        self.expected(rows).or(Some(measured.seconds))
    }

    /// As [`expected`](Self::expected), however few rows have been measured: beyond them, each row
    /// is assumed to cost as much as one of the measured step. Nothing is assumed to cost anything
    /// before fewer rows or as many have been measured, so that they are tried.
    pub fn estimate(&self, rows: usize) -> f32 {
        if let Some(expected) = self.expected(rows) {
            return expected;
        }
        let is_fresh = |measured: &&Measured| measured.at + STALE_AFTER > self.steps;
        let fresh = self.ranges.iter().flatten().filter(is_fresh);
        let mut below = fresh.filter(|measured| measured.rows <= rows as f32);
        let below = below.next_back();
        below.map_or(0.0, |below| below.seconds * rows as f32 / below.rows)
    }

    /// The expected time of a step with `rows` rows; `None` if far fewer have been measured.
    pub fn expected(&self, rows: usize) -> Option<f32> {
        let is_fresh = |measured: &Measured| measured.at + STALE_AFTER > self.steps;
        let fresh = self.ranges.iter().flatten().filter(|m| is_fresh(m));
        let rows = rows as f32;
        let (mut earlier, mut below, mut above) = (None, None, None);
        for measured in fresh {
            if measured.rows <= rows {
                (earlier, below) = (below, Some(measured));
            } else {
                above = above.or(Some(measured));
            }
        }
        let below: &Measured = below?;
        let beyond = rows - below.rows;
        let per_row = match above {
            Some(above) => below.time_of_a_row_until(above),
            None if rows > FURTHEST * below.rows + FURTHEST_ROWS => return None,
            None => {
                let known = earlier.map_or(0.0, |earlier| earlier.time_of_a_row_until(below));
                known.max(UNKNOWN_ROW * below.seconds / below.rows)
            }
        };
        Some(below.seconds + beyond * per_row)
    }
}

fn range_of(rows: usize) -> usize {
    if rows <= EXACT {
        return rows.saturating_sub(1);
    }
    let octave = rows.ilog2() as usize;
    let quarter = (rows >> (octave - 2)) & 3;
    (EXACT + 4 * (octave - 3) + quarter).min(RANGES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_in_order_and_within_bounds() {
        let ranges: Vec<usize> = (1..10_000).map(range_of).collect();
        assert!(ranges.is_sorted());
        assert_eq!(ranges[..9], [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(ranges.iter().all(|&range| range < RANGES));
    }

    #[test]
    fn times_between_measured_rows_are_interpolated_and_beyond_them_assumed() {
        let mut costs = StepCosts::new();
        assert_eq!((costs.base(1), costs.expected(2)), (None, None));
        assert_eq!(costs.estimate(2), 0.0);
        costs.record(1, 1.0);
        assert_eq!(costs.base(1), Some(1.0));
        assert_eq!(costs.expected(5), Some(2.0));
        costs.record(5, 1.4);
        assert!((costs.expected(3).unwrap() - 1.2).abs() < 1e-6);
        assert!((costs.expected(6).unwrap() - 1.5).abs() < 1e-6);
        assert_eq!(costs.expected(12), None, "too far from what is known");
        assert!((costs.estimate(12) - 3.36).abs() < 1e-5);
        costs.record(1, 100.0);
        assert!(costs.base(1).unwrap() < 1.2, "a delay counts little");
    }

    #[test]
    fn a_time_is_measured_again_after_some_steps() {
        let mut costs = StepCosts::new();
        costs.record(1, 1.0);
        for _ in 0..BASE_EVERY {
            costs.record(5, 1.2);
        }
        assert_eq!(costs.base(1), None);
        assert!(costs.expected(2).is_some());
        for _ in 0..STALE_AFTER {
            costs.record(5, 1.2);
        }
        assert_eq!(costs.expected(2), None);
    }
}

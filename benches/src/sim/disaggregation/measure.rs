//! The times and rates that a run is judged by.

use std::ops::Range;

use super::workload::Request;

/// A gap is counted in units of 10 microseconds.
const UNIT_NS: u64 = 10_000;

/// Counts the tokens of a run, and the gaps between two tokens of a request (ITL). The figures are
/// those of a window, in which the cluster is neither filling up nor running empty.
#[derive(Debug)]
pub struct Recorder {
    window: Range<u64>,
    /// The number of gaps of each length, for the gaps that end in the window.
    gaps: Vec<u64>,
    longest_gap: u64,
    tokens_in_window: u64,
    /// All tokens of the run.
    pub tokens: u64,
    /// The sum of all gaps of the run, in nanoseconds.
    pub gap_time: u64,
}

/// The figures of a run, for the requests and tokens of its window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Nanoseconds from a request's arrival to its first token.
    pub ttft_p50: u64,
    pub ttft_p95: u64,
    /// Nanoseconds between two tokens of a request.
    pub itl_p50: u64,
    pub itl_p95: u64,
    pub itl_max: u64,
    /// Output tokens per second.
    pub throughput: f64,
    /// Output tokens that the arriving requests ask for, per second.
    pub offered: f64,
}

impl Figures {
    /// Whether the cluster keeps up with the arriving requests. If it does not, its queues grow for
    /// as long as requests arrive, and the times say more about the length of the run than about
    /// the cluster.
    pub fn sustained(&self) -> bool {
        self.throughput >= 0.95 * self.offered
    }
}

impl Recorder {
    pub fn new(window: Range<u64>) -> Self {
        Self {
            window,
            gaps: Vec::new(),
            longest_gap: 0,
            tokens_in_window: 0,
            tokens: 0,
            gap_time: 0,
        }
    }

    /// Counts the first token of a request.
    pub fn first_token(&mut self, now: u64) {
        self.tokens += 1;
        self.tokens_in_window += u64::from(self.window.contains(&now));
    }

    /// Counts one more token each for `requests` requests, whose last token was `gap` ago.
    pub fn next_tokens(&mut self, now: u64, gap: u64, requests: u64) {
        self.tokens += requests;
        self.gap_time += gap * requests;
        if requests == 0 || !self.window.contains(&now) {
            return;
        }
        self.tokens_in_window += requests;
        self.longest_gap = self.longest_gap.max(gap);
        let unit = (gap / UNIT_NS) as usize;
        if unit >= self.gaps.len() {
            self.gaps.resize(unit + 1, 0);
        }
        self.gaps[unit] += requests;
    }

    /// The figures of the run. `first` has the time of each request's first token.
    pub fn figures(&self, requests: &[Request], first: &[u64]) -> Figures {
        let measured = || {
            let pairs = requests.iter().zip(first);
            pairs.filter(|(request, _)| self.window.contains(&request.arrival))
        };
        let offered: u64 = measured().map(|(request, _)| request.output).sum();
        let mut ttft: Vec<u64> = measured()
            .map(|(request, first)| first - request.arrival)
            .collect();
        ttft.sort_unstable();
        let ttft = |share: f64| ttft.get(rank(ttft.len() as u64, share) as usize);
        let seconds = (self.window.end - self.window.start) as f64 / 1e9;
        Figures {
            ttft_p50: ttft(0.5).copied().unwrap_or(0),
            ttft_p95: ttft(0.95).copied().unwrap_or(0),
            itl_p50: self.gap(0.5),
            itl_p95: self.gap(0.95),
            itl_max: self.longest_gap,
            throughput: self.tokens_in_window as f64 / seconds,
            offered: offered as f64 / seconds,
        }
    }

    /// The gap that a `share` of all gaps does not exceed.
    fn gap(&self, share: f64) -> u64 {
        let rank = rank(self.gaps.iter().sum(), share);
        let mut seen = 0;
        let unit = self.gaps.iter().position(|count| {
            seen += count;
            seen > rank
        });
        unit.map_or(0, |unit| unit as u64 * UNIT_NS)
    }
}

/// The index of a percentile among `count` sorted values.
fn rank(count: u64, share: f64) -> u64 {
    (count.saturating_sub(1) as f64 * share) as u64
}

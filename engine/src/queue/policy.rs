//! The orders in which waiting requests start.

/// Who of the waiting starts next. Under every policy a request that had to give
/// its slots back goes first (under [`Priority`](Self::Priority): among its
/// equals), and ties go to whoever came first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SchedulePolicy {
    /// First come, first served.
    Fcfs,
    /// Longest prefix match first: whoever has most of its prompt in the cache
    /// (the cache-aware order of arXiv 2312.07104, equal to a depth-first walk
    /// over the tree of the waiting prompts). The default, as it has the highest hit
    /// rate and the shortest makespan of all on the simulator's workloads
    /// (`benches/RESULTS.md`), and costs a step no more than the others.
    #[default]
    Lpm,
    /// A depth-first walk over the tree of the waiting prompts, into the branch
    /// with most requests first. It is planned once for all that wait, and who
    /// comes later is in the next plan.
    DfsWeight,
    /// Longest output first, by `max_tokens`.
    Lof,
    /// Highest priority first. A request that finds no room takes that of running
    /// requests with lower priorities. There is no bound on how long a low
    /// priority waits while higher ones keep coming.
    Priority,
    /// At random, the same in every run.
    Random,
}

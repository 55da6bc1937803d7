//! The orders in which waiting requests start.

/// Which waiting request starts next. Under every policy a request that was preempted goes
/// first (under [`Priority`](Self::Priority): first among requests of the same priority), and
/// ties go to the request that arrived first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SchedulePolicy {
    /// First come, first served.
    Fcfs,
    /// Longest prefix match first: the request with the longest prefix in the cache
    /// (the cache-aware order of arXiv 2312.07104, equal to a depth-first walk over the tree
    /// of the waiting prompts). It is the default because it has the highest hit rate and the
    /// shortest makespan of all policies on the simulator's workloads
    /// (`benches/RESULTS.md`), and costs a step no more than the others.
    #[default]
    Lpm,
    /// A depth-first walk over the tree of the waiting prompts, into the branch with the most
    /// requests first. The walk is planned once for all requests that wait; requests that
    /// arrive later belong to the next plan.
    DfsWeight,
    /// Longest output first, by `max_tokens`.
    Lof,
    /// Highest priority first. A request that finds no room preempts running requests of
    /// lower priority. Nothing bounds how long a request of low priority waits while requests
    /// of higher priority keep arriving.
    Priority,
    /// A random order, the same in every run.
    Random,
}

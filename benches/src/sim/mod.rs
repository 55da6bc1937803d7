//! The scheduler and the prefix cache without a model: a real engine over an executor that computes
//! nothing and takes the time from a cost model, so that hit rates and makespans are the same on
//! every machine. The simulation of a cluster ([`disaggregation`]) shares the cost model, and has a
//! scheduler of its own, because 256 engines would be too slow.

pub mod cost;
pub mod disaggregation;
mod driver;
mod executor;
mod optimum;
pub mod overhead;
mod random;
pub mod routing;
pub mod saturation;
pub mod tree;
mod vocab;
pub mod workload;

use hearth_engine::{Engine, EngineConfig, EngineStats};

use driver::SharedDriver;
use executor::{Clock, SimExecutor};
use workload::Workload;

/// The results of one run.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// The share of all prompt tokens that came from the cache.
    pub hit_rate: f64,
    /// The hit rate of an unbounded cache that serves the requests one after another.
    pub best_hit_rate: f64,
    /// Simulated seconds from the first request to the last answer.
    pub makespan: f64,
    pub stats: EngineStats,
}

/// Runs `workload` to its end on a device with `kv_slots` KV slots and a host tier of `host_slots`.
///
/// # Errors
/// If the engine does not come up, or refuses a request.
pub fn run(
    workload: &Workload,
    config: EngineConfig,
    kv_slots: usize,
    host_slots: usize,
) -> anyhow::Result<Outcome> {
    let clock = Clock::default();
    let driver = SharedDriver::new(workload);
    let executor = {
        let (clock, driver) = (clock.clone(), driver.clone());
        move || Ok(SimExecutor::new(kv_slots, host_slots, clock, driver))
    };
    let engine = Engine::spawn(config, executor)?;
    driver.start(&engine)?;
    while !driver.advance_if_idle(&engine)? {
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
    let stats = engine.stats();
    engine.shutdown(std::time::Duration::ZERO);
    Ok(Outcome {
        hit_rate: stats.cached_tokens as f64 / stats.prompt_tokens as f64,
        best_hit_rate: optimum::hit_rate(&driver.calls()),
        makespan: clock.seconds(),
        stats,
    })
}

//! Saturation tells where a server is full, and how many replicas there should be.

use hearth_benches::sim::saturation::arrivals::Process;
use hearth_benches::sim::saturation::scaler::{Signal, best};
use hearth_benches::sim::saturation::{KEPT, MODELS, fleet, knee};

const SEED: u64 = 1;

#[test]
fn saturation_is_1_at_the_load_at_which_a_server_misses_its_objective() {
    let [large, small] = MODELS;
    // Bursts of long prompts at the small model miss the objective earlier: `hearth-sim saturation`.
    let cases = Process::ALL.map(|process| (large, process));
    let cases = cases
        .into_iter()
        .chain([(small, Process::Even), (small, Process::Poisson)]);
    for (model, process) in cases {
        let found = knee::find(&model, process, 3000, SEED);
        let ratio = found.saturated / found.kept;
        let name = (model.name, process.name());
        assert!((0.9..=1.1).contains(&ratio), "{name:?}: {found:?}");
    }
}

#[test]
fn an_autoscaler_that_follows_saturation_keeps_the_objective_with_the_fewest_replicas() {
    let model = MODELS[0];
    let arrivals = fleet::arrivals(&model, Process::Poisson, 4.4, 30, SEED);
    let run = |signal| best(&model, &arrivals, signal).1;
    let saturation = run(Signal::Saturation);
    assert!(saturation.kept >= KEPT, "{saturation:?}");
    for signal in [Signal::Queue, Signal::Busy] {
        let other = run(signal);
        let fewer = saturation.mean_replicas < other.mean_replicas;
        assert!(fewer || other.kept < KEPT, "{saturation:?} {other:?}");
    }
}

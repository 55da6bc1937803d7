//! The picture of the engine that a viewer gets.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Fixture, prompt};
use hearth_engine::{EngineConfig, EngineStopped, NodeState, RunningRequest};
use std::time::Duration;

#[test]
fn a_picture_shows_the_step_in_flight_and_an_idle_engine_answers_too() {
    let (fixture, permits) = Fixture::gated(EngineConfig::default(), 512);
    let picture = fixture.engine.picture(10).wait_blocking().unwrap();
    assert!(picture.batch.is_empty() && picture.running.is_empty());
    assert_eq!(picture.cache.nodes, []);

    let generation = fixture.submit(&prompt(1, 10), 4);
    fixture.wait_until("it runs", |f| f.engine.stats().running == 1);
    let look = fixture.engine.picture(10);
    // The look is answered during the step after this one.
    permits.send(()).unwrap();
    let picture = look.wait_blocking().unwrap();
    let id = generation.id();
    assert_eq!(picture.batch.len(), 1, "{picture:?}");
    assert_eq!(picture.batch[0].0, id);
    let [running] = picture.running[..] else {
        panic!("one runs: {picture:?}")
    };
    let RunningRequest { prompt, cached, .. } = running;
    assert_eq!((running.id, prompt, cached), (id, 10, 0));
    assert_eq!(picture.stats.kv.total, 512);
    drop(permits);
    common::answer(generation);

    fixture.wait_until("it is idle", |f| f.engine.stats().is_idle());
    let picture = fixture.engine.picture(10).wait_blocking().unwrap();
    assert!(picture.batch.is_empty() && picture.running.is_empty());
    let leaf = picture.cache.nodes.last().unwrap();
    assert_eq!(leaf.state, NodeState::Cached);
    let prefix = fixture.engine.cached_prefix(leaf.id, 4).wait_blocking();
    let prefix = prefix.unwrap().unwrap();
    assert_eq!((prefix.tokens.len(), prefix.own), (4, leaf.tokens));
    let nowhere = fixture.engine.cached_prefix(12345, 4).wait_blocking();
    assert_eq!(nowhere, Ok(None));

    fixture.engine.shutdown(Duration::ZERO);
    let look = fixture.engine.picture(10).wait_blocking();
    assert_eq!(look.unwrap_err(), EngineStopped);
}

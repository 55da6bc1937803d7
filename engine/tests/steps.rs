//! The reports of the engine's steps to an observer, and the times in the events of a request.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

mod common;

use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use common::{FAILS, Fixture, prompt};
use hearth_engine::{EngineConfig, Event, PauseMode, StepObserver, StepReport};

fn observed(config: EngineConfig, kv_slots: usize) -> (Fixture, Receiver<StepReport>) {
    let fixture = Fixture::new(config, kv_slots);
    let (sender, reports) = channel();
    fixture.engine.observe(StepObserver {
        requests: true,
        observe: Box::new(move |reports| reports.for_each(|report| sender.send(report).unwrap())),
    });
    (fixture, reports)
}

/// Observes `fixture` with an observer that gets many reports at a time.
fn observe_together(fixture: &Fixture) -> Receiver<Vec<StepReport>> {
    let (sender, reports) = channel();
    fixture.engine.observe(StepObserver {
        requests: false,
        observe: Box::new(move |reports| sender.send(reports.collect()).unwrap()),
    });
    reports
}

#[test]
fn an_observer_gets_a_report_of_every_step_with_its_rows_requests_and_times() {
    let (fixture, reports) = observed(EngineConfig::default(), 256);
    let generation = fixture.submit(&prompt(1, 20), 3);
    let id = generation.id();
    let before = Instant::now();
    common::answer(generation);
    // The report of a step arrives before the final events of the requests that end in it.
    let reports: Vec<_> = reports.try_iter().collect();
    assert_eq!(reports.len(), 3);
    let rows = |report: &StepReport| {
        (
            report.prefill_rows,
            report.prefill_tokens,
            report.decode_rows,
        )
    };
    assert_eq!(rows(&reports[0]), (1, 20, 0));
    assert_eq!(rows(&reports[2]), (0, 0, 1));
    let started = |report: &StepReport| {
        (
            report.started_requests,
            report.queried_tokens,
            report.cached_tokens,
        )
    };
    assert_eq!(started(&reports[0]), (1, 20, 0));
    assert_eq!(started(&reports[1]), (0, 0, 0));
    let after = reports[0].occupancy;
    assert_eq!((after.running, after.waiting), (1, 0));
    assert!(after.kv_used >= 20 && after.kv_total == 256);
    assert_eq!(reports[0].requests, [(id, 20)]);
    for report in &reports {
        assert!(report.requests.iter().all(|(request, _)| *request == id));
        assert!(report.started <= report.scheduled && report.scheduled <= report.forwarded);
        assert!(report.forwarded <= report.finished && !report.failed);
        assert_eq!(report.generated_tokens, 1);
        assert!(report.finished.saturating_duration_since(before) < Duration::from_secs(60));
    }
    assert!(
        reports
            .windows(2)
            .all(|pair| pair[0].finished <= pair[1].started)
    );
}

#[test]
fn reports_are_handed_over_together_for_ten_milliseconds_and_none_is_kept_by_an_idle_engine() {
    let fixture = Fixture::new(EngineConfig::default(), 256);
    let handed_over = observe_together(&fixture);
    common::answer(fixture.submit(&prompt(1, 20), 200));
    let handed_over: Vec<_> = handed_over.try_iter().collect();
    let steps: usize = handed_over.iter().map(Vec::len).sum();
    assert_eq!(steps as u64, fixture.engine.stats().steps);
    let mut before: Option<Instant> = None;
    for together in &handed_over {
        assert!((1..=64).contains(&together.len()), "{}", together.len());
        assert!(together.iter().all(|report| report.requests.is_empty()));
        // All but the last came too early to be handed over.
        let early = together.iter().rev().skip(1);
        let waited = early.filter_map(|report| Some(report.finished - before?));
        assert!(waited.max() < Some(Duration::from_millis(10)));
        before = together.last().map(|report| report.finished);
    }
}

#[test]
fn a_paused_engine_keeps_no_report() {
    let (fixture, permits) = Fixture::gated(EngineConfig::default(), 512);
    let handed_over = observe_together(&fixture);
    let generation = fixture.submit(&prompt(1, 20), 400);
    let permit = |steps: usize| (0..steps).for_each(|_| permits.send(()).unwrap());
    permit(50);
    fixture.wait_until("it has run", |fixture| fixture.engine.stats().steps >= 40);
    let paused = fixture.engine.pause(PauseMode::InPlace);
    // It pauses after the steps that are in flight.
    permit(50);
    paused.wait_blocking().unwrap();
    let stats = fixture.engine.stats();
    assert!(stats.paused && stats.running == 1, "{stats:?}");
    let steps: usize = handed_over.try_iter().map(|together| together.len()).sum();
    assert_eq!(steps as u64, stats.steps);
    drop(permits);
    fixture.engine.resume().wait_blocking().unwrap();
    common::answer(generation);
}

#[test]
fn a_failed_forward_pass_is_reported_as_failed() {
    let (fixture, reports) = observed(EngineConfig::default(), 256);
    fixture.run(&[1, 2, FAILS], 3).end.unwrap_err();
    let reports: Vec<_> = reports.try_iter().collect();
    assert!(reports.len() == 1 && reports[0].failed, "{reports:?}");
}

#[test]
fn events_have_the_times_of_queueing_start_preemption_and_tokens() {
    let config = EngineConfig {
        retract_every: Some(4),
        ..EngineConfig::default()
    };
    let (fixture, _reports) = observed(config, 256);
    let begun = Instant::now();
    // Both start in the same step: otherwise the first could be done before the second arrives.
    let paused = fixture.engine.pause(PauseMode::InPlace);
    paused.wait_blocking().unwrap();
    let streams = [1, 2].map(|seed| fixture.submit(&prompt(seed, 10), 30));
    fixture.engine.resume().wait_blocking().unwrap();
    let (mut preempted, mut resumed) = (0, 0);
    for mut stream in streams {
        let mut times = vec![begun];
        while let Some(event) = stream.next_blocking() {
            match event {
                Event::Started {
                    queued, started, ..
                } => times.extend([queued, started]),
                Event::Preempted { at } => {
                    preempted += 1;
                    times.push(at);
                }
                Event::Resumed { at } => {
                    resumed += 1;
                    times.push(at);
                }
                Event::Token(token) => times.push(token.at),
                _ => {}
            }
        }
        times.push(Instant::now());
        assert!(times.len() >= 34 && times.is_sorted(), "{times:?}");
    }
    assert_eq!(preempted, fixture.engine.stats().preemptions);
    assert_eq!(resumed, preempted, "both requests ran to their ends");
    assert!(
        preempted > 0,
        "all but the oldest are retracted every four steps"
    );
}

#[test]
fn the_heartbeat_of_a_stuck_engine_grows_and_an_idle_one_has_none() {
    let (fixture, permits) = Fixture::gated(EngineConfig::default(), 64);
    let watch = fixture.engine.watch();
    assert_eq!(watch.heartbeat_age(), Duration::ZERO);
    let generation = fixture.submit(&prompt(1, 5), 1);
    let stuck = Duration::from_millis(30);
    fixture.wait_until("its heartbeat is old", |_| watch.heartbeat_age() > stuck);
    drop(permits);
    common::answer(generation);
    fixture.wait_until("it has none when idle", |_| {
        watch.heartbeat_age() == Duration::ZERO
    });
}

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
        observe: Box::new(move |report| sender.send(report).unwrap()),
    });
    (fixture, reports)
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
    assert_eq!((reports[0].running, reports[0].waiting), (1, 0));
    assert!(reports[0].kv.held >= 20 && reports[0].kv.is_conserved());
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

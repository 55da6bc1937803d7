//! Tests what is written when the engine hangs.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hearth_otel::{EngineFacts, EngineSnapshot, StepRecord, Telemetry, TelemetryOptions};
use serde_json::Value;

/// A step of a millisecond that ended `ago`.
fn step(ago: Duration) -> StepRecord {
    let finished = Instant::now().checked_sub(ago).unwrap();
    let started = finished.checked_sub(Duration::from_millis(1)).unwrap();
    StepRecord {
        forwarded: finished,
        finished,
        tokens: 1,
        decode_rows: 1,
        ..StepRecord::empty(started)
    }
}

#[test]
fn the_last_steps_of_an_engine_that_hangs_are_written_to_a_file() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stall");
    let _ = fs::remove_dir_all(&dir);
    let telemetry = Telemetry::start(TelemetryOptions {
        stall_dir: Some(dir.clone()),
        ..TelemetryOptions::default()
    })
    .unwrap();
    let hangs = Arc::new(AtomicBool::new(false));
    let engine = Arc::clone(&hangs);
    let read = move || EngineSnapshot {
        running: 1,
        waiting: 2,
        heartbeat_age: match engine.load(Ordering::Relaxed) {
            true => Duration::from_secs(31),
            false => Duration::ZERO,
        },
        ..EngineSnapshot::default()
    };
    let facts = EngineFacts::default();
    telemetry.serve_model("m", facts, read).unwrap();
    let begin = Instant::now().checked_sub(Duration::from_secs(45)).unwrap();
    let steps = [40, 35, 31].map(|seconds| step(Duration::from_secs(seconds)));
    telemetry.steps().send(steps.into_iter());
    let deadline = Instant::now() + Duration::from_secs(60);
    while telemetry.step_sums(begin).unwrap().steps < 3 {
        assert!(Instant::now() < deadline, "the steps were not recorded");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!dir.exists(), "the engine does not hang yet");
    hangs.store(true, Ordering::Relaxed);
    let text = loop {
        let mut files = fs::read_dir(&dir).into_iter().flatten();
        let file = files.next().map(|file| file.unwrap().path());
        // It may be read while it is written.
        if let Some(file) = file
            && let Ok(trace) = serde_json::from_str::<Value>(&fs::read_to_string(file).unwrap())
        {
            break trace;
        }
        assert!(Instant::now() < deadline, "nothing was written");
        std::thread::sleep(Duration::from_millis(50));
    };
    let events = text["traceEvents"].as_array().unwrap();
    let named = |name: &str| {
        events
            .iter()
            .filter(|event| event["name"] == name)
            .collect()
    };
    let forwards: Vec<_> = named("forward");
    assert_eq!(forwards.len(), 3, "{text}");
    let stuck: Vec<_> = named("no step has ended");
    assert_eq!(stuck.len(), 1, "{text}");
    assert!(stuck[0]["dur"].as_f64() >= Some(31e6), "{text}");
    assert_eq!(stuck[0]["args"]["waiting"], 2, "{text}");
    fs::remove_dir_all(dir).unwrap();
}

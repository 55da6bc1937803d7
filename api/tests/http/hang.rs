//! An engine that hangs: what it did before is written to a file.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use hearth_otel::TelemetryOptions;
use serde_json::{Value, json};

use super::fake::{Behaviour, TestServer};
use super::{COMPLETIONS, ok};

static HANGS: AtomicBool = AtomicBool::new(false);

/// The traces in `dir` that are written whole.
fn traces(dir: &Path) -> Vec<Value> {
    let files = std::fs::read_dir(dir).into_iter().flatten();
    files
        .filter_map(|file| {
            serde_json::from_slice(&std::fs::read(file.unwrap().path()).unwrap()).ok()
        })
        .collect()
}

/// The events of a trace with this name.
fn events<'a>(trace: &'a Value, name: &str) -> Vec<&'a Value> {
    let events = trace["traceEvents"].as_array().unwrap().iter();
    events.filter(|event| event["name"] == name).collect()
}

fn micros(event: &Value, field: &str) -> f64 {
    event[field].as_f64().unwrap()
}

fn unix_micros() -> f64 {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    time.unwrap().as_secs_f64() * 1e6
}

#[tokio::test]
async fn the_steps_before_a_hang_are_written_with_the_time_since_the_last_one() {
    let dir = std::env::temp_dir().join(format!("hearth-hang-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let behaviour = Behaviour {
        hangs: Some(&HANGS),
        ..Behaviour::default()
    };
    let after = Duration::from_secs(3);
    let telemetry = TelemetryOptions {
        stall_dir: Some(dir.clone()),
        stall_after: after,
        ..TelemetryOptions::default()
    };
    let server = TestServer::measured(behaviour, telemetry);
    let body = json!({"prompt": "abc", "max_tokens": 5, "temperature": 0});
    ok(&server, COMPLETIONS, &body).await;
    server.wait_until_idle().await;
    // An engine without work does not hang.
    tokio::time::sleep(after + Duration::from_secs(2)).await;
    assert!(traces(&dir).is_empty());
    HANGS.store(true, Ordering::SeqCst);
    let begun = unix_micros();
    let asked = async {
        let answer = ok(&server, COMPLETIONS, &body).await;
        assert_eq!(answer["usage"]["completion_tokens"], 5);
    };
    let watched = async {
        let deadline = Instant::now() + Duration::from_secs(60);
        let trace = loop {
            if let Some(trace) = traces(&dir).pop() {
                break trace;
            }
            assert!(Instant::now() < deadline, "no trace was written");
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        HANGS.store(false, Ordering::SeqCst);
        trace
    };
    let ((), trace) = tokio::join!(asked, watched);
    // The steps of the first request, the prompt and then a token in each, and none of the second.
    let forwards = events(&trace, "forward");
    let sum = |field: &str| -> u64 {
        let steps = forwards.iter().map(|step| &step["args"][field]);
        steps.map(|count| count.as_u64().unwrap()).sum()
    };
    assert_eq!(sum("prefill_tokens"), 4, "{trace}");
    assert_eq!(sum("decode_rows"), 4, "{trace}");
    let hang = events(&trace, "no step has ended");
    let [hang] = hang[..] else {
        panic!("one event: {trace}");
    };
    assert_eq!(hang["args"], json!({"running": 1, "waiting": 0}));
    assert!(micros(hang, "dur") >= after.as_secs_f64() * 1e6, "{hang}");
    // It began with the second request, after the last step that ended.
    let last = forwards
        .iter()
        .map(|step| micros(step, "ts") + micros(step, "dur"));
    assert!(micros(hang, "ts") >= last.fold(0.0, f64::max), "{trace}");
    let slack = 1e6;
    assert!(micros(hang, "ts") >= begun - slack, "{hang} {begun}");
    assert!(
        micros(hang, "ts") + micros(hang, "dur") <= unix_micros() + slack,
        "{hang}"
    );
    assert_eq!(traces(&dir).len(), 1);
    server.wait_until_idle().await;
    std::fs::remove_dir_all(dir).unwrap();
}

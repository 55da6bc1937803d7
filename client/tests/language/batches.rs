//! Batches, retries and bounds.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use hearth_client::lang::{Batch, Error, Frontend, Retry, State, generate};

use super::fake::Fake;

async fn greet(s: &mut State, name: usize) -> Result<String, Error> {
    s.extend("greet#").extend(format!("{name}"));
    s.extend(generate("hi").max_tokens(3));
    s.get_text("hi").await
}

#[tokio::test]
async fn results_are_in_order_within_the_bound_after_the_common_prefix() {
    let fake = Fake {
        step: Duration::from_millis(2),
        ..Fake::default()
    };
    let frontend = Frontend::new(fake.clone());
    let mut seen = Vec::new();
    let batch = Batch::default()
        .in_flight(4)
        .on_progress(|done, all| seen.push((done, all)));
    let results = frontend.run_batch(greet, 0..20, batch).await;
    assert_eq!(seen.len(), 20);
    assert_eq!(seen[19], (20, 20));
    assert!(fake.counts.most_running.load(Relaxed) <= 4);
    assert_eq!(*fake.counts.cached.lock().unwrap(), ["greet#"]);
    for (name, result) in results.into_iter().enumerate() {
        let mut alone = frontend.state();
        assert_eq!(result, greet(&mut alone, name).await, "{name}");
    }
}

#[tokio::test]
async fn a_full_server_is_asked_again_and_other_errors_are_not() {
    let retry = Retry {
        attempts: 3,
        first_wait: Duration::from_millis(1),
        longest_wait: Duration::from_millis(2),
    };
    for (refusals, ok) in [(2, true), (3, false)] {
        let fake = Fake::with_script("a");
        fake.refusals.store(refusals, Relaxed);
        let frontend = Frontend::new(fake).retrying(retry);
        let mut s = frontend.state();
        s += "#";
        s += generate("x");
        assert_eq!(s.get_text("x").await.is_ok(), ok, "{refusals} refusals");
    }
    let fake = Fake {
        refusals: Arc::default(),
        ..Fake::default()
    };
    let frontend = Frontend::new(fake.clone()).retrying(retry);
    let mut s = frontend.state();
    s += "fail here";
    s += generate("x");
    assert!(s.get_text("x").await.is_err());
    assert_eq!(fake.counts.most_running.load(Relaxed), 1);
}

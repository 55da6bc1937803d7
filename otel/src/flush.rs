//! The last export of a process.

use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

use opentelemetry_sdk::error::OTelSdkResult;

/// Runs `export`, which gets the time that it has, for at most `timeout`. It runs on a thread that is
/// left behind if the time is up, because each provider waits for its own exporter, which may wait
/// for a collector that is gone.
pub fn within(
    timeout: Duration,
    export: impl FnOnce(Duration) -> Vec<OTelSdkResult> + Send + 'static,
) {
    let (done, seen) = sync_channel(1);
    let flusher = thread::Builder::new()
        .name("hearth-flush".to_owned())
        .spawn(move || {
            for error in export(timeout).into_iter().filter_map(Result::err) {
                tracing::warn!(%error, "the last telemetry was not delivered");
            }
            // The receiver is gone if the time is up.
            let _ = done.send(());
        });
    if flusher.is_ok() && seen.recv_timeout(timeout).is_err() {
        tracing::warn!("the collector does not answer; the last telemetry is lost");
    }
}

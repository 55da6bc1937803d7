//! The text that is printed when the server is ready: the model, its URL, device and memory,
//! and an example request to paste into a terminal.

use std::net::SocketAddr;
use std::time::Duration;

use hearth_api::numbers::count_text;
use hearth_api::served::{ModelInfo, Served};
use serde_json::{Value, json};

use crate::config::Config;

/// Returns the lines that are printed when the server is ready, `took` after its start.
pub fn banner(
    config: &Config,
    served: &Served,
    address: Option<&SocketAddr>,
    took: Duration,
) -> String {
    let info = &served.info;
    let limits = served.engine.limits();
    let url = url(config, address);
    let headroom = match info.headroom_bytes {
        Some(bytes) => format!(", headroom {}", bytes_text(bytes)),
        None => String::new(),
    };
    let (route, example) = example(served);
    format!(
        "\
Hearth {version} serves {id} ({architecture}, {parameters} parameters, {dtype})
  at       {url}/v1, and in a browser {url}/
  on       {device}
  memory   weights {weights}, KV cache {kv} ({slots} slots, one per token){headroom}{draft}
  context  {context} tokens per sequence; {running} sequences at once, {queue} waiting
  ready    in {seconds:.2} s

Try it:
  curl {url}{route} -H 'content-type: application/json' \\
    -d '{example}'
",
        version = env!("CARGO_PKG_VERSION"),
        id = served.id,
        architecture = info.architecture,
        parameters = count_text(info.parameters),
        dtype = info.formats(),
        device = info.device,
        weights = bytes_text(info.weight_bytes),
        kv = bytes_text(info.kv_bytes),
        slots = limits.kv_slots,
        draft = draft_line(info),
        context = served.context(),
        running = config.max_running_requests,
        queue = config.max_queue,
        seconds = took.as_secs_f64(),
    )
}

/// The line about the draft model, if there is one.
fn draft_line(info: &ModelInfo) -> String {
    let Some(draft) = &info.draft_model else {
        return String::new();
    };
    format!(
        "\n  drafts   {path} ({parameters} parameters), weights {weights}, KV cache {kv}",
        path = draft.model_path,
        parameters = count_text(draft.parameters),
        weights = bytes_text(draft.weight_bytes),
        kv = bytes_text(draft.kv_bytes),
    )
}

/// A route that this model supports, and an example body for it.
fn example(served: &Served) -> (&'static str, Value) {
    let id = &served.id;
    if served.text.can_chat() {
        let messages = json!([{"role": "user", "content": "Tell me a story."}]);
        return (
            "/v1/chat/completions",
            json!({"model": id, "messages": messages}),
        );
    }
    let prompt = match served.text.encode("Once upon a time", true) {
        Ok(_) => json!("Once upon a time"),
        Err(_) => json!([1, 2, 3]),
    };
    ("/v1/completions", json!({"model": id, "prompt": prompt}))
}

/// The URL of the server for a client on this machine.
fn url(config: &Config, address: Option<&SocketAddr>) -> String {
    let port = address.map_or(config.port, SocketAddr::port);
    let host = match config.host.as_str() {
        "0.0.0.0" | "::" => "127.0.0.1".to_owned(),
        host if host.contains(':') => format!("[{host}]"),
        host => host.to_owned(),
    };
    let scheme = if config.tls_cert.is_some() {
        "https"
    } else {
        "http"
    };
    format!("{scheme}://{host}:{port}")
}

/// Formats a size in bytes, in powers of 1024.
pub fn bytes_text(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes} B")
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_counts_are_written_with_readable_units() {
        assert_eq!(bytes_text(0), "0 B");
        assert_eq!(bytes_text(1023), "1023 B");
        assert_eq!(bytes_text(1536), "1.5 KiB");
        assert_eq!(bytes_text(3 << 30), "3.0 GiB");
    }

    #[test]
    fn the_url_can_be_pasted_into_a_client_on_this_machine() {
        let on = |host: &str| Config {
            host: host.to_owned(),
            ..Config::default()
        };
        assert_eq!(url(&on("0.0.0.0"), None), "http://127.0.0.1:8000");
        assert_eq!(url(&on("::1"), None), "http://[::1]:8000");
        let address = "127.0.0.1:5000".parse().unwrap();
        assert_eq!(
            url(&on("127.0.0.1"), Some(&address)),
            "http://127.0.0.1:5000"
        );
    }
}

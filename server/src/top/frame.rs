//! One picture of the view: what happened between two moments.

use std::fmt::Write;
use std::time::Instant;

use serde_json::Value;

use super::page::Page;

/// The numbers of a server at one time.
#[derive(Debug)]
pub struct Moment {
    pub at: Instant,
    pub page: Page,
    /// The answer of `/server_info`.
    pub info: Value,
}

/// Characters of a bar.
const BAR: usize = 24;

/// The lines of the picture, without escape sequences. At most 79 characters of a line are used.
pub fn frame(url: &str, before: &Moment, now: &Moment) -> String {
    let between = Between { before, now };
    let mut out = String::new();
    for (name, text) in [
        ("server", server(url, now)),
        ("requests", requests(&between)),
        ("saturation", saturation(&between)),
        ("tokens/s", tokens(&between)),
        (
            "TTFT",
            quantiles(&between, "gen_ai_server_time_to_first_token_seconds"),
        ),
        (
            "ITL",
            quantiles(&between, "llm_inter_token_latency_seconds"),
        ),
        (
            "queue",
            quantiles(&between, "llm_request_queue_time_seconds"),
        ),
        ("step", step(&between)),
        ("", parts(&between)),
        ("KV cache", cache(&between)),
        ("", slots(&between)),
        ("prefix cache", prefixes(&between)),
    ] {
        line(&mut out, name, &text);
    }
    if between.level("llm_host_cache_capacity") > 0.0 {
        line(&mut out, "host cache", &host(&between));
    }
    if now.page.sum("llm_speculation_drafts_total").is_some() {
        line(&mut out, "speculation", &speculation(&between));
    }
    out.truncate(out.trim_end().len());
    out
}

fn line(out: &mut String, name: &str, text: &str) {
    // Names come from the server, and a terminal obeys control characters.
    let text: String = text.chars().filter(|c| !c.is_control()).take(66).collect();
    let _ = writeln!(out, "{name:<12} {text}");
}

/// The time between two moments.
struct Between<'a> {
    before: &'a Moment,
    now: &'a Moment,
}

impl Between<'_> {
    fn seconds(&self) -> f64 {
        let time = self.now.at.saturating_duration_since(self.before.at);
        time.as_secs_f64().max(1e-9)
    }

    /// The present value of a gauge, 0 if there is none.
    fn level(&self, name: &str) -> f64 {
        self.now.page.sum(name).unwrap_or(0.0)
    }

    /// The growth of a counter.
    fn growth(&self, name: &str) -> f64 {
        let before = self.before.page.sum(name).unwrap_or(0.0);
        (self.level(name) - before).max(0.0)
    }

    fn rate(&self, name: &str) -> f64 {
        self.growth(name) / self.seconds()
    }

    /// The growth of `part` divided by that of `whole`; `None` while `whole` stands still.
    fn ratio(&self, part: &str, whole: &str) -> Option<f64> {
        let whole = self.growth(whole);
        (whole > 0.0).then(|| self.growth(part) / whole)
    }
}

fn server(url: &str, now: &Moment) -> String {
    let text = |key: &str| now.info[key].as_str().unwrap_or("?").to_owned();
    let seconds = now.info["uptime_seconds"].as_f64().unwrap_or(0.0) as u64;
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    format!(
        "{}  hearth {}  up {hours}:{minutes:02}:{:02}  {url}",
        text("model"),
        text("version"),
        seconds % 60
    )
}

fn requests(between: &Between<'_>) -> String {
    let waiting = |reason| {
        let name = "llm_num_requests_waiting_by_reason";
        let page = &between.now.page;
        page.sum_where(name, "llm_wait_reason", reason)
            .unwrap_or(0.0)
    };
    format!(
        "{} running of {}, {} waiting for room, {} deferred, {:.1} ended/s",
        between.level("llm_num_requests_running"),
        between.level("llm_max_num_requests_running"),
        waiting("capacity"),
        waiting("deferred"),
        between.rate("llm_requests_total"),
    )
}

/// Running and waiting requests by how many may run: the recording rule `hearth:saturation:ratio`.
fn saturation(between: &Between<'_>) -> String {
    let wanted =
        between.level("llm_num_requests_running") + between.level("llm_num_requests_waiting");
    let ratio = wanted / between.level("llm_max_num_requests_running").max(1.0);
    let preempted = between.rate("llm_num_preemptions_total");
    format!("{} {ratio:.2}, {preempted:.1} preemptions/s", bar(ratio))
}

fn tokens(between: &Between<'_>) -> String {
    format!(
        "{:.0} of prompts, {:.0} generated",
        between.rate("llm_prompt_tokens_total"),
        between.rate("llm_generation_tokens_total"),
    )
}

fn quantiles(between: &Between<'_>, name: &str) -> String {
    let (now, before) = (&between.now.page, &between.before.page);
    let of = |quantile| duration(now.quantile(before, name, quantile));
    format!("p50 {}, p90 {}, p99 {}", of(0.5), of(0.9), of(0.99))
}

fn step(between: &Between<'_>) -> String {
    let busy = between.rate("llm_engine_step_execute_time_seconds_sum");
    let size = between.ratio("llm_iteration_tokens_sum", "llm_iteration_tokens_count");
    format!(
        "{:.0}/s of {} tokens, {} {:.0} % busy",
        between.rate("llm_engine_steps_total"),
        size.map_or("-".to_owned(), |size| format!("{size:.1}")),
        bar(busy),
        busy * 100.0,
    )
}

/// Where the time of a step goes. `execute` has `forward` in it.
fn parts(between: &Between<'_>) -> String {
    let mean = |part: &str| {
        let name = format!("llm_engine_step_{part}_time_seconds");
        duration(between.ratio(&format!("{name}_sum"), &format!("{name}_count")))
    };
    format!(
        "scheduler {}, forward {}, execute {}",
        mean("scheduler"),
        mean("forward"),
        mean("execute")
    )
}

fn cache(between: &Between<'_>) -> String {
    let used = between.level("llm_kv_cache_usage");
    let slots = between.level("llm_kv_cache_capacity");
    format!(
        "{} {:.0} % of {slots} tokens in use",
        bar(used),
        used * 100.0
    )
}

fn slots(between: &Between<'_>) -> String {
    let state = |state| {
        let page = &between.now.page;
        page.sum_where("llm_kv_cache_tokens", "llm_kv_cache_state", state)
            .unwrap_or(0.0)
    };
    format!(
        "{} free, {} evictable, {} protected, {} held",
        state("free"),
        state("evictable"),
        state("protected"),
        state("held")
    )
}

fn prefixes(between: &Between<'_>) -> String {
    let ratio = between.ratio(
        "llm_prefix_cache_hits_total",
        "llm_prefix_cache_queries_total",
    );
    ratio.map_or("no prompts".to_owned(), |ratio| {
        format!(
            "{} {:.0} % of prompt tokens cached",
            bar(ratio),
            ratio * 100.0
        )
    })
}

fn host(between: &Between<'_>) -> String {
    let used = between.level("llm_host_cache_usage");
    format!(
        "{} {:.0} % full, {:.0} tokens/s in, {:.0} out",
        bar(used),
        used * 100.0,
        between.rate("llm_host_cache_demoted_tokens_total"),
        between.rate("llm_host_cache_loaded_tokens_total"),
    )
}

fn speculation(between: &Between<'_>) -> String {
    let accepted = between.ratio(
        "llm_speculation_accepted_tokens_total",
        "llm_speculation_drafted_tokens_total",
    );
    accepted.map_or("no drafts".to_owned(), |accepted| {
        let drafted = between.rate("llm_speculation_drafted_tokens_total");
        let part = accepted * 100.0;
        format!(
            "{} {part:.0} % of {drafted:.0} drafted tokens/s accepted",
            bar(accepted)
        )
    })
}

/// A bar that is full at 1.
fn bar(part: f64) -> String {
    let full = ((part.clamp(0.0, 1.0) * BAR as f64).round() as usize).min(BAR);
    format!("[{}{}]", "#".repeat(full), ".".repeat(BAR - full))
}

fn duration(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(s) if s < 1e-3 => format!("{:.0} us", s * 1e6),
        Some(s) if s < 1.0 => format!("{:.1} ms", s * 1e3),
        Some(s) => format!("{s:.2} s"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    #[test]
    fn a_picture_has_the_rates_between_two_moments_and_no_control_characters() {
        let at = Instant::now();
        let moment = |at, tokens: u32| Moment {
            at,
            page: Page::new(&format!(
                "llm_num_requests_running 2\nllm_num_requests_waiting 6\nllm_max_num_requests_running 4\n\
                 llm_generation_tokens_total {tokens}\nllm_kv_cache_usage 0.5\nllm_kv_cache_capacity 100\n"
            )),
            info: json!({"model": "m\u{1b}[2J", "version": "1", "uptime_seconds": 3723.0}),
        };
        let text = frame(
            "u",
            &moment(at, 100),
            &moment(at + Duration::from_secs(2), 300),
        );
        assert!(text.contains("m[2J  hearth 1  up 1:02:03  u"), "{text}");
        assert!(text.contains("2.00, 0.0 preemptions/s"), "{text}");
        assert!(text.contains("100 generated"), "{text}");
        assert!(
            text.contains("[############............] 50 % of 100 tokens"),
            "{text}"
        );
        assert!(text.lines().all(|line| line.chars().count() < 80), "{text}");
    }
}

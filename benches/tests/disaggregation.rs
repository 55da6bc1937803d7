//! Tests the simulation of mixed and disaggregated clusters.

use hearth_benches::sim::cost::KV_BYTES;
use hearth_benches::sim::disaggregation::cluster::{self, Arrangement, Run};
use hearth_benches::sim::disaggregation::link::Links;
use hearth_benches::sim::disaggregation::measure::Figures;
use hearth_benches::sim::disaggregation::node::Limits;
use hearth_benches::sim::disaggregation::report::{self, LIMITS, Settings};
use hearth_benches::sim::disaggregation::split;
use hearth_benches::sim::disaggregation::workload::{Request, WORKLOADS};

const MIXED: Arrangement = Arrangement::Mixed { nodes: 1 };

fn pd(prefill: usize, decode: usize, gigabits: u64) -> Arrangement {
    Arrangement::Disaggregated {
        prefill,
        decode,
        gigabits,
    }
}

fn request(arrival: u64, prompt: u64, output: u64) -> Request {
    Request {
        arrival,
        prompt,
        output,
    }
}

fn run(requests: &[Request], arrangement: Arrangement) -> Run {
    cluster::run(requests, arrangement, LIMITS, 0..u64::MAX)
}

#[test]
fn a_seed_gives_one_table() {
    let table = |seed| {
        let mut text = String::new();
        let settings = Settings {
            nodes: vec![2, 4],
            requests: 24,
            seed,
        };
        report::table(&settings, |row| text += &format!("{row}\n"));
        text
    };
    let first = table(1);
    assert_eq!(first, table(1));
    assert_ne!(first, table(2));
    // Two sizes, three workloads, two loads; three mixed rows and four links.
    assert_eq!(first.lines().count(), 2 * 3 * 2 * 7);
    let columns = report::HEADER.lines().map(|line| line.matches('|').count());
    for line in first.lines() {
        assert!(columns.clone().all(|n| n == line.matches('|').count()));
    }
}

#[test]
fn each_request_gets_all_its_tokens_once() {
    for workload in WORKLOADS {
        for (rate, arrangement) in [
            (4.0, Arrangement::Mixed { nodes: 4 }),
            (4.0, pd(2, 2, 10)),
            (2.0, pd(1, 3, 400)),
            // Nodes and links with more requests than they can keep up with.
            (100.0, Arrangement::Mixed { nodes: 4 }),
            (100.0, pd(3, 1, 100)),
            (100.0, pd(1, 3, 1)),
        ] {
            let requests = workload.requests(300, rate, 7);
            let run = run(&requests, arrangement);
            let sum = |of: fn(&Request) -> u64| requests.iter().map(of).sum::<u64>();
            assert_eq!(run.recorder.tokens, sum(|r| r.output), "{arrangement:?}");
            assert_eq!(run.prefilled, sum(|r| r.prompt), "{arrangement:?}");
            let moved = match arrangement {
                Arrangement::Mixed { .. } => 0,
                Arrangement::Disaggregated { .. } => run.prefilled * KV_BYTES,
            };
            assert_eq!(run.moved, moved);
            let mut between = 0;
            for (request, (first, last)) in requests.iter().zip(run.first.iter().zip(&run.last)) {
                assert!(*first > request.arrival && last > first, "{request:?}");
                // A step of one row takes 22 ms and more.
                assert!(last - first >= (request.output - 1) * 22_000_000);
                between += last - first;
            }
            // The gaps of a request fill the time from its first token to its last one.
            assert_eq!(run.recorder.gap_time, between, "{arrangement:?}");
        }
    }
}

/// A prompt of 1,000 tokens is computed in chunks of 512 and 488.
#[test]
fn one_request_on_an_idle_node_takes_the_time_of_the_formula() {
    let run = run(&[request(5_000, 1_000, 5)], MIXED);
    let chunks = 512 * 200_000 + 512 * 800 + 488 * 200_000 + 1_000 * 800;
    assert_eq!(run.first, [5_000 + chunks]);
    let decode = 4 * 22_000_000 + (1_001 + 1_002 + 1_003 + 1_004) * 800;
    assert_eq!(run.last, [5_000 + chunks + decode]);
    let figures = run.figures(&[request(5_000, 1_000, 5)]);
    assert_eq!(figures.ttft_p50, chunks);
    assert_eq!(figures.ttft_p95, chunks);
    assert_eq!(figures.itl_max, 22_000_000 + 1_004 * 800);
    // Percentiles of ITL are in units of 10 us.
    assert_eq!(figures.itl_p50, 22_800_000);
}

#[test]
fn a_request_with_one_token_ends_with_its_first_token() {
    for arrangement in [MIXED, pd(1, 1, 10)] {
        let run = run(&[request(0, 100, 1)], arrangement);
        assert_eq!(run.first, run.last);
        assert_eq!(run.recorder.tokens, 1);
    }
}

#[test]
fn a_link_adds_what_it_sends_after_the_last_chunk() {
    const TOKEN_BITS: u64 = 524_288 * 8;
    let first = |prompt, gigabits| run(&[request(0, prompt, 5)], pd(1, 1, gigabits)).first[0];
    let one_chunk = 512 * 200_000 + 512 * 800;
    assert_eq!(first(512, 1), one_chunk + 512 * TOKEN_BITS);
    assert_eq!(
        first(512, 400),
        one_chunk + (512 * TOKEN_BITS).div_ceil(400)
    );
    // A slow link still sends the first chunk when the second one is computed.
    assert_eq!(first(1_000, 1), one_chunk + 1_000 * TOKEN_BITS);
    // A fast link has sent the first chunk by then.
    let two_chunks = one_chunk + 488 * 200_000 + 1_000 * 800;
    let last_chunk = (488 * TOKEN_BITS).div_ceil(100);
    assert_eq!(first(1_000, 100), two_chunks + last_chunk);
}

#[test]
fn decoding_alone_takes_the_same_time_on_a_decode_node() {
    let requests = [request(0, 3_000, 100)];
    let (mixed, pd) = (run(&requests, MIXED), run(&requests, pd(1, 1, 10)));
    assert_eq!(mixed.last[0] - mixed.first[0], pd.last[0] - pd.first[0]);
}

#[test]
fn a_faster_link_never_delays_the_first_token_of_a_single_request() {
    for prompt in (1..9_000).step_by(257) {
        let requests = [request(0, prompt, 3)];
        let mixed = run(&requests, MIXED).first[0];
        let mut slower = u64::MAX;
        for gigabits in [1, 2, 10, 25, 100, 200, 400, 800] {
            let first = run(&requests, pd(1, 1, gigabits)).first[0];
            assert!(first <= slower, "{prompt} tokens, {gigabits} Gbit/s");
            assert!(first > mixed, "{prompt} tokens, {gigabits} Gbit/s");
            slower = first;
        }
    }
}

#[test]
fn a_transfer_waits_for_its_senders_link_and_its_receivers() {
    let mut links = Links::new(4, 1);
    let time = 10 * KV_BYTES * 8;
    assert_eq!(links.send(0, 0, 10), 0);
    assert_eq!(links.receive(0, 2, 10), time);
    // The sender is occupied, and the receiver is not any more when the transfer starts.
    assert_eq!(links.send(0, 0, 10), time);
    assert_eq!(links.receive(time, 2, 10), 2 * time);
    // The receiver is occupied by the transfer of another sender.
    assert_eq!(links.send(time, 1, 10), time);
    assert_eq!(links.receive(time, 2, 10), 3 * time);
    // Meanwhile the other sender reaches an idle receiver at once.
    assert_eq!(links.send(2 * time, 1, 10), 2 * time);
    assert_eq!(links.receive(2 * time, 3, 10), 3 * time);
    assert_eq!(links.bytes, 40 * KV_BYTES);
}

#[test]
fn a_link_that_two_requests_share_serves_them_one_after_another() {
    let transfer = 512 * KV_BYTES * 8;
    let computed = 512 * 200_000 + 512 * 800;
    let requests = [request(0, 512, 5), request(0, 512, 5)];
    // Both arrive at one decode node, and at two: only the first of these shares a link.
    let one = run(&requests, pd(2, 1, 1));
    assert_eq!(one.first, [computed + transfer, computed + 2 * transfer]);
    let two = run(&requests, pd(2, 2, 1));
    assert_eq!(two.first, [computed + transfer, computed + transfer]);
    // One prefill node computes the prompts in turn, and sends them in turn.
    let sender = run(&requests, pd(1, 2, 1));
    assert_eq!(sender.first, [computed + transfer, computed + 2 * transfer]);
}

#[test]
fn no_more_requests_run_on_a_node_than_its_limit() {
    let requests = [request(0, 10, 2); 3];
    let third = |max_running| {
        let limits = Limits {
            max_running,
            ..LIMITS
        };
        cluster::run(&requests, MIXED, limits, 0..u64::MAX).first[2]
    };
    // The first request arrives at an idle node and has a step for itself. The two others share the
    // second step if there is room; otherwise the third one waits until the first one is complete.
    let alone = 22_000_000 + 10 * 800;
    assert_eq!(third(64), alone + 22_000_000 + (11 + 10 + 10) * 800);
    assert_eq!(third(2), alone + 2 * (22_000_000 + (11 + 10) * 800));
}

#[test]
fn a_decode_node_without_a_free_row_keeps_a_request_waiting_before_its_first_token() {
    let requests = [request(0, 10, 50), request(0, 10, 50)];
    let limits = Limits {
        max_running: 1,
        ..LIMITS
    };
    let run = cluster::run(&requests, pd(2, 1, 400), limits, 0..u64::MAX);
    assert_eq!(run.first[1], run.last[0]);
}

#[test]
fn a_request_goes_to_the_node_with_the_fewest_outstanding_tokens() {
    let requests = [request(0, 2_000, 9), request(0, 100, 9), request(1, 100, 9)];
    let run = run(&requests, Arrangement::Mixed { nodes: 3 });
    let alone = 22_000_000 + 100 * 800;
    assert_eq!(run.first[1], alone);
    assert_eq!(run.first[2], 1 + alone);
}

#[test]
fn tokens_that_a_node_has_computed_do_not_count_as_outstanding() {
    let two = Arrangement::Mixed { nodes: 2 };
    let alone = 22_000_000 + 10 * 800;
    // The second request still decodes on its node when the third one arrives; the first one had
    // more tokens, and is complete.
    let requests = [
        request(0, 2_000, 2),
        request(0, 10, 200),
        request(3_000_000_000, 10, 2),
    ];
    let run_of_prompts = run(&requests, two);
    assert!(run_of_prompts.last[0] < 3_000_000_000 && run_of_prompts.last[1] > 4_000_000_000);
    assert_eq!(run_of_prompts.first[2], 3_000_000_000 + alone);
    // The same with a long output: the second request goes to either node, the third to the other.
    let requests = [
        request(0, 10, 200),
        request(5_000_000_000, 10, 150),
        request(5_100_000_000, 10, 2),
    ];
    let run_of_outputs = run(&requests, two);
    assert!(run_of_outputs.last[0] < 5_000_000_000);
    assert_eq!(run_of_outputs.first[2], 5_100_000_000 + alone);
}

#[test]
fn a_prefill_node_that_still_sends_gets_no_request_while_another_is_idle() {
    // The first prompt is computed after 103 ms, and takes 2.1 s on the link.
    let requests = [request(0, 512, 5), request(500_000_000, 512, 5)];
    let run = run(&requests, pd(2, 2, 1));
    assert_eq!(run.first[1] - 500_000_000, run.first[0]);
}

#[test]
fn a_prompt_delays_the_rows_of_a_mixed_node_and_not_those_of_a_decode_node() {
    let requests = [request(0, 10, 100), request(100_000_000, 512, 2)];
    let mixed = run(&requests, MIXED).figures(&requests);
    assert!(mixed.itl_max > 102_000_000, "{mixed:?}");
    let pd = run(&requests, pd(1, 1, 100)).figures(&requests);
    assert!(pd.itl_max < 45_000_000, "{pd:?}");
}

#[test]
fn a_cluster_keeps_up_below_its_capacity_and_not_above() {
    for workload in WORKLOADS {
        let capacity = split::capacity(workload, LIMITS, 1);
        let sustained = |share: f64| {
            let requests = workload.requests(800, 4.0 * capacity * share, 1);
            let window = requests[200].arrival..requests[799].arrival;
            let mixed = Arrangement::Mixed { nodes: 4 };
            cluster::run(&requests, mixed, LIMITS, window)
                .figures(&requests)
                .sustained()
        };
        assert!(sustained(0.8), "{workload:?}");
        assert!(!sustained(1.3), "{workload:?}");
    }
}

#[test]
fn longer_prompts_and_shorter_outputs_need_more_prefill_nodes() {
    let by_work = WORKLOADS.map(|workload| split::by_work(workload, 64, LIMITS));
    assert!(by_work.is_sorted_by(|a, b| a < b), "{by_work:?}");
    for workload in WORKLOADS {
        assert_eq!(split::by_work(workload, 2, LIMITS), 1);
    }
    assert_eq!(split::candidates(8, 64), [0, 4, 8, 12, 16][1..]);
    assert_eq!(split::candidates(1, 2), [1]);
}

#[test]
fn the_best_split_has_a_low_ttft_within_the_bound_of_itl() {
    let figures = |ttft_p95, itl_p95, throughput| Figures {
        ttft_p50: 0,
        ttft_p95,
        itl_p50: 0,
        itl_p95,
        itl_max: 0,
        throughput,
        offered: 100.0,
    };
    let tried = [
        // This one does not keep up.
        (1, figures(1, 1, 90.0)),
        (2, figures(500, 20, 100.0)),
        (3, figures(420, 30, 100.0)),
        // A TTFT that is 4.8 % lower is not worth a higher ITL.
        (4, figures(400, 35, 96.0)),
        (5, figures(100, 60, 100.0)),
    ];
    let best = |itl_bound| split::best(&tried, itl_bound).map(|(prefill, _)| prefill);
    assert_eq!(best(100), Some(5));
    assert_eq!(best(40), Some(3));
    assert_eq!(best(25), Some(2));
    // No split is within this bound.
    assert_eq!(best(10), Some(2));
    assert_eq!(split::best(&tried[..1], 100), None);
}

use std::collections::BTreeSet;
use std::time::Duration;

use hearth_router::RouterConfig;
use serde_json::{Value, json};

use crate::fake::{End, Fake, Reply};
use crate::harness::{code, config, pd, until};

fn quick_breaker() -> RouterConfig {
    RouterConfig {
        cb_failure_threshold: 5,
        ..config()
    }
}

#[actix_web::test]
async fn another_attempt_has_another_pair_and_a_new_room() {
    let [p1, p2, d1, d2] = ["p1", "p2", "d1", "d2"].map(Fake::start);
    for (bad_prefill, bad_decode) in [(true, false), (false, true)] {
        // The other worker of the pair gets its request before the failure.
        let pause = Duration::from_millis(200);
        let prefill = Reply::json(if bad_prefill { 500 } else { 200 }, json!({}));
        p1.always(prefill.slowly(pause));
        let decode = Reply::json(if bad_decode { 503 } else { 200 }, json!({}));
        // Decode waits for the KV, so that prefill's error is there first.
        d1.always(decode.slowly(2 * pause));
        let router = pd(&[&p1, &p2], &[&d1, &d2], config()).await;
        let before = [&p1, &p2, &d1, &d2].map(|worker| worker.count());
        let response = router.post("/generate", &json!({"text": "a"})).await;
        assert_eq!(response.status(), 200);
        let after = [&p1, &p2, &d1, &d2].map(|worker| worker.count());
        let sent: usize = after.iter().sum::<usize>() - before.iter().sum::<usize>();
        assert_eq!(sent, 4, "two pairs");
        let rooms: BTreeSet<String> = [&p1, &p2]
            .iter()
            .map(|worker| worker.seen().pop().unwrap().json()["bootstrap_room"].to_string())
            .collect();
        assert_eq!(rooms.len(), 2);
        let ids: BTreeSet<String> = [&p1, &p2]
            .iter()
            .map(|worker| worker.seen().pop().unwrap().json()["rid"].to_string())
            .collect();
        assert_eq!(ids.len(), 1, "it is still the same request");
        // Ports follow the prefill worker.
        let port = |worker: &Fake| worker.seen().pop().unwrap().json()["bootstrap_port"].clone();
        assert_eq!([port(&p1), port(&p2)], [8998, 8999]);
    }
}

#[actix_web::test]
async fn prefills_errors_are_the_clients_with_a_code() {
    let (prefill, decode) = (Fake::start("p"), Fake::start("d"));
    decode.always(Reply::hanging());
    let all_attempts = RouterConfig {
        disable_circuit_breaker: true,
        ..config()
    };
    let router = pd(&[&prefill], &[&decode], all_attempts).await;
    for (status, expected, requests) in [
        (400, "prefill_bad_request", 1),
        (500, "prefill_internal_error", 5),
        (501, "prefill_internal_error", 1),
    ] {
        let count = prefill.count();
        prefill.always(Reply::json(
            status,
            json!({"error": {"message": "the reason"}}),
        ));
        for stream in [false, true] {
            let response = router
                .post("/generate", &json!({"text": "a", "stream": stream}))
                .await;
            assert_eq!(
                (response.status().as_u16(), code(&response)),
                (status, expected)
            );
            let body: Value = response.json().await.unwrap();
            assert_eq!(body["error"]["code"], expected);
            assert!(
                body["error"]["message"]
                    .as_str()
                    .unwrap()
                    .ends_with("the reason")
            );
        }
        assert_eq!(prefill.count() - count, 2 * requests);
    }
    // Decode's requests were dropped with prefill's errors.
    until("they are dropped", async || {
        decode.abandoned() == decode.count()
    })
    .await;
    assert_eq!(router.worker(&decode).await["circuit_breaker"], "closed");
}

#[actix_web::test]
async fn decodes_errors_are_returned_as_they_are() {
    let (prefill, decode) = (Fake::start("p"), Fake::start("d"));
    let router = pd(&[&prefill], &[&decode], config()).await;
    decode.always(Reply::json(422, json!({"own": "form"})));
    let response = router
        .post("/generate", &json!({"text": "a", "stream": true}))
        .await;
    assert_eq!(
        (response.status().as_u16(), code(&response)),
        (422, "decode_bad_request")
    );
    assert_eq!(response.text().await.unwrap(), "{\"own\":\"form\"}");
    decode.kill().await;
    let response = router.post("/generate", &json!({"text": "a"})).await;
    assert_eq!(
        (response.status().as_u16(), code(&response)),
        (502, "decode_unavailable")
    );
}

#[actix_web::test]
async fn a_prefill_worker_that_is_gone_is_502() {
    let (prefill, decode) = (Fake::start("p"), Fake::start("d"));
    decode.always(Reply::hanging());
    let slow = RouterConfig {
        health_check_interval_secs: 60.0,
        ..config()
    };
    let router = pd(&[&prefill], &[&decode], slow).await;
    prefill.kill().await;
    let response = router
        .post("/generate", &json!({"text": "a", "stream": true}))
        .await;
    assert_eq!(
        (response.status().as_u16(), code(&response)),
        (502, "prefill_unavailable")
    );
    until("decode is free", async || {
        router.worker(&decode).await["load"] == 0
    })
    .await;
}

#[actix_web::test]
async fn without_another_prefill_worker_decode_may_answer_alone() {
    let (prefill, decode) = (Fake::start("p"), Fake::start("d"));
    let patient = RouterConfig {
        decode_alone_timeout_secs: 10.0,
        ..config()
    };
    let router = pd(&[&prefill], &[&decode], patient).await;
    prefill.always(Reply::json(500, json!({})));
    decode.always(Reply::json(200, json!({"text": "computed by decode"})));
    let response = router.post("/generate", &json!({"text": "a"})).await;
    assert_eq!(response.status(), 200);
    assert!(
        response
            .text()
            .await
            .unwrap()
            .contains("computed by decode")
    );
    assert_eq!((prefill.count(), decode.count()), (1, 1));
    // The log-probabilities of the prompt are prefill's alone.
    let scored = json!({"text": "a", "return_logprob": true});
    let response = router.post("/generate", &scored).await;
    assert_eq!(code(&response), "prefill_internal_error");
}

#[actix_web::test]
async fn a_failure_counts_against_the_side_that_failed() {
    let (prefill, decode) = (Fake::start("p"), Fake::start("d"));
    let router = pd(&[&prefill], &[&decode], quick_breaker()).await;
    decode.always(Reply::json(500, json!({})));
    let response = router.post("/generate", &json!({"text": "a"})).await;
    assert_eq!(
        (response.status().as_u16(), code(&response)),
        (500, "decode_internal_error")
    );
    assert_eq!(router.worker(&decode).await["circuit_breaker"], "open");
    assert_eq!(router.worker(&prefill).await["circuit_breaker"], "closed");
    let failed = format!(
        "smg_worker_cb_outcomes_total{{outcome=\"failure\",worker=\"{}\"}}",
        prefill.url
    );
    assert_eq!(router.sample(&failed).await, None);

    let decode = Fake::start("d");
    let router = pd(&[&prefill], &[&decode], quick_breaker()).await;
    prefill.always(Reply::json(500, json!({})));
    decode.always(Reply::hanging());
    router.post("/generate", &json!({"text": "a"})).await;
    assert_eq!(router.worker(&prefill).await["circuit_breaker"], "open");
    assert_eq!(router.worker(&decode).await["circuit_breaker"], "closed");
    let failed = format!(
        "smg_worker_cb_outcomes_total{{outcome=\"failure\",worker=\"{}\"}}",
        decode.url
    );
    assert_eq!(router.sample(&failed).await, None);
}

#[actix_web::test]
async fn nothing_is_tried_again_after_the_first_byte() {
    let [p1, p2, d1, d2] = ["p1", "p2", "d1", "d2"].map(Fake::start);
    for decode in [&d1, &d2] {
        let reply = Reply::sse(&["data: {\"a\":1}\n\n", "data: {\"b"]);
        decode.always(reply.slowly(Duration::from_millis(20)).ending(End::Break));
    }
    let router = pd(&[&p1, &p2], &[&d1, &d2], config()).await;
    for body in [
        json!({"text": "a", "stream": true}),
        // This stream is looked at for something to merge.
        json!({"text": "a", "stream": true, "return_logprob": true}),
    ] {
        let count = d1.count() + d2.count();
        let response = router.post("/generate", &body).await;
        assert_eq!(response.status(), 200);
        let text = response.text().await.unwrap();
        let last = text.trim_end().rsplit("\n\n").next().unwrap();
        assert!(text.ends_with("\n\n"));
        let error: Value = serde_json::from_str(last.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(error["error"]["code"], "upstream_broken");
        assert_eq!(d1.count() + d2.count(), count + 1);
    }
}

#[actix_web::test]
async fn a_prefill_worker_that_breaks_off_does_not_disturb_a_response_without_its_part() {
    let (prefill, decode) = (Fake::start("p"), Fake::start("d"));
    prefill.always(
        Reply::sse(&["data: 1\n\n"])
            .slowly(Duration::from_millis(10))
            .ending(End::Break),
    );
    decode.always(Reply::json(200, json!({"meta_info": {}})));
    let router = pd(&[&prefill], &[&decode], quick_breaker()).await;
    let response = router.post("/generate", &json!({"text": "a"})).await;
    assert_eq!(response.text().await.unwrap(), "{\"meta_info\":{}}");
    // With its part the response would be wrong.
    let asked = json!({"text": "a", "return_logprob": true});
    let response = router.post("/generate", &asked).await;
    assert!(response.status().is_server_error(), "{}", response.status());
}

#[actix_web::test]
async fn without_a_prefill_worker_decode_gets_the_request_alone() {
    let (prefill, decode) = (Fake::start("p"), Fake::start("d"));
    for (seconds, alone) in [(10.0, true), (0.0, false)] {
        let config = RouterConfig {
            decode_alone_timeout_secs: seconds,
            ..quick_breaker()
        };
        let router = pd(&[&prefill], &[&decode], config).await;
        let id = router.worker(&prefill).await["id"].clone();
        let url = format!("{}/workers/{}", router.url, id.as_str().unwrap());
        router.client.delete(url).send().await.unwrap();
        until("the prefill worker is gone", async || {
            router.workers().await.len() == 1
        })
        .await;
        let response = router.post("/generate", &json!({"text": "a"})).await;
        if !alone {
            assert_eq!(
                (response.status().as_u16(), code(&response)),
                (503, "no_available_workers")
            );
            continue;
        }
        let body: Value = response.json().await.unwrap();
        assert_eq!(body["worker"], "d");
        let sent = decode.seen().pop().unwrap().json();
        assert!(sent.get("bootstrap_room").is_none() && sent["text"] == "a");
        // The log-probabilities of the prompt are prefill's.
        let asked = json!({"text": "a", "return_logprob": true});
        let response = router.post("/generate", &asked).await;
        assert_eq!(response.status(), 503);
    }
    assert_eq!((prefill.count(), decode.count()), (0, 1));
}

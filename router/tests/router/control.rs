use std::cell::Cell;
use std::time::Duration;

use serde_json::{Value, json};

use crate::fake::{Fake, Reply};
use crate::harness::{code, config, pd, regular, until};

#[actix_web::test]
async fn workers_come_and_go_under_load_without_a_lost_request() {
    let workers = [Fake::start("a"), Fake::start("b"), Fake::start("c")];
    for worker in &workers {
        let reply = Reply::sse(&["data: 1\n\n", "data: 2\n\n", "data: [DONE]\n\n"]);
        worker.always(reply.slowly(Duration::from_millis(5)));
    }
    let router = regular(&[&workers[0]], config()).await;
    let url = format!("{}/v1/chat/completions", router.url);
    let client = router.client.clone();
    let (sent, over) = (Cell::new(0), Cell::new(false));
    let asking = async || {
        while !over.get() {
            sent.set(sent.get() + 1);
            let response = client
                .post(&url)
                .json(&json!({"stream": true}))
                .send()
                .await
                .unwrap();
            assert_eq!(response.status(), 200);
            let text = response.text().await.unwrap();
            assert_eq!(text, "data: 1\n\ndata: 2\n\ndata: [DONE]\n\n");
        }
    };
    let load = async {
        futures_util::future::join_all((0..8).map(|_| asking())).await;
    };
    let changes = async {
        for worker in &workers[1..] {
            let added = router.post("/workers", &json!({"url": worker.url})).await;
            assert_eq!(added.status(), 202);
            let added: Value = added.json().await.unwrap();
            let location = added["location"].as_str().unwrap().to_owned();
            until("it gets requests", async || worker.count() > 0).await;
            let shown: Value = router.get(&location).await.json().await.unwrap();
            assert_eq!(shown["url"], worker.url.as_str());
        }
        for worker in &workers[..2] {
            let id = router.worker(worker).await["id"]
                .as_str()
                .unwrap()
                .to_owned();
            let url = format!("{}/workers/{id}", router.url);
            assert_eq!(
                router.client.delete(&url).send().await.unwrap().status(),
                202
            );
            until("it is gone", async || router.worker(worker).await.is_null()).await;
            // A request that was on its way still arrives.
            until("it gets no more requests", async || {
                let count = worker.count();
                actix_web::rt::time::sleep(Duration::from_millis(50)).await;
                worker.count() == count
            })
            .await;
            assert_eq!(
                router.client.delete(&url).send().await.unwrap().status(),
                404
            );
        }
        over.set(true);
    };
    futures_util::future::join(load, changes).await;
    let total: usize = workers.iter().map(Fake::count).sum();
    assert_eq!(total, sent.get());
    let list: Value = router.get("/list_workers").await.json().await.unwrap();
    assert_eq!(list["urls"], json!([workers[2].url]));
}

#[actix_web::test]
async fn a_draining_worker_finishes_its_requests() {
    let worker = Fake::start("a");
    worker.always(Reply::sse(&["data: 1\n\n", "data: 2\n\n"]).slowly(Duration::from_millis(400)));
    let router = regular(&[&worker], config()).await;
    let response = router.post("/generate", &json!({"stream": true})).await;
    let id = router.worker(&worker).await["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let url = format!("{}/workers/{id}", router.url);
    router.client.delete(&url).send().await.unwrap();
    let shown = router.worker(&worker).await;
    assert_eq!(
        [&shown["is_draining"], &shown["load"]],
        [&json!(true), &json!(1)]
    );
    let refused = router.post("/generate", &json!({})).await;
    assert_eq!(code(&refused), "no_available_workers");
    assert_eq!(response.text().await.unwrap(), "data: 1\n\ndata: 2\n\n");
    until("it is gone", async || {
        router.worker(&worker).await.is_null()
    })
    .await;
    // Nothing of it is left in the metrics.
    let load = format!("smg_worker_requests_active{{worker=\"{}\"}}", worker.url);
    assert_eq!(router.sample(&load).await, None);
}

#[actix_web::test]
async fn workers_that_do_not_fit_are_refused_by_field() {
    let worker = Fake::start("a");
    let router = regular(&[&worker], config()).await;
    let pair = pd(&[&worker], &[&worker], config()).await;
    for (router, body, status, expected) in [
        (
            &router,
            json!({"url": worker.url}),
            409,
            "registered already",
        ),
        (&router, json!({"url": "nonsense"}), 400, "`url`"),
        (
            &router,
            json!({"url": "http://a:1", "worker_type": "decode"}),
            400,
            "`worker_type`",
        ),
        (
            &router,
            json!({"url": "http://a:1", "bootstrap_port": 1}),
            400,
            "`bootstrap_port`",
        ),
        (
            &router,
            json!({"url": "http://a:1", "cost": 2}),
            400,
            "`cost`",
        ),
        (&router, json!({}), 400, "`url`"),
        (&pair, json!({"url": "http://a:1"}), 400, "`worker_type`"),
    ] {
        let response = router.post("/workers", &body).await;
        assert_eq!(response.status(), status, "{body}");
        let error: Value = response.json().await.unwrap();
        let message = error["error"]["message"].as_str().unwrap();
        assert!(message.contains(expected), "{message}");
    }
    let body =
        json!({"url": "http://127.0.0.1:9", "worker_type": "prefill", "bootstrap_port": 8998});
    assert_eq!(pair.post("/workers", &body).await.status(), 202);
    let workers: Value = pair.get("/workers").await.json().await.unwrap();
    assert_eq!(
        workers["stats"],
        json!({"prefill_count": 2, "decode_count": 1, "regular_count": 0})
    );
    assert_eq!(workers["workers"][2]["bootstrap_port"], 8998);
}

#[actix_web::test]
async fn questions_to_all_workers_are_merged() {
    let (one, two) = (Fake::start("a"), Fake::start("b"));
    let text = "# TYPE sglang:running gauge\nsglang:running 2\n";
    for worker in [&one, &two] {
        worker.answer(move |seen| match seen.path.as_str() {
            "/metrics" => Reply {
                content_type: "text/plain",
                ..Reply::sse(&[text])
            },
            "/get_load" => Reply::json(200, json!([{"num_reqs": 1, "num_tokens": 7}])),
            _ => Reply::json(200, json!({})),
        });
    }
    let router = regular(&[&one, &two], config()).await;
    let merged = router.get("/engine_metrics").await.text().await.unwrap();
    assert_eq!(merged.matches("# TYPE sglang_running gauge\n").count(), 1);
    for worker in [&one, &two] {
        assert!(merged.contains(&format!(
            "sglang_running{{worker_addr=\"{}\"}} 2\n",
            worker.url
        )));
    }
    let loads: Value = router.get("/get_loads").await.json().await.unwrap();
    let expected = [&one, &two].map(|worker| json!({"worker": worker.url, "load": 7}));
    assert_eq!(loads["workers"], json!(expected));
    let response = router.post("/flush_cache", &json!({})).await;
    assert_eq!(response.status(), 200);
    for worker in [&one, &two] {
        let seen = worker.seen().pop().unwrap();
        assert_eq!(
            (seen.method.as_str(), seen.path.as_str()),
            ("POST", "/flush_cache")
        );
    }
    two.always(Reply::json(500, json!({})));
    let response = router.post("/flush_cache", &json!({})).await;
    assert_eq!(response.status(), 502);
    let body: Value = response.json().await.unwrap();
    assert_eq!(body["failures"][0]["worker"], two.url.as_str());
    let loads: Value = router.get("/get_loads").await.json().await.unwrap();
    assert_eq!(loads["workers"][1]["load"], -1);
}

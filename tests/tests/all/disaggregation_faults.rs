//! Prefill and decode servers that die, stall and send damaged bytes, under load: no client waits
//! for ever, no slot is lost, and no answer has a wrong byte.
//!
//! `HEARTH_FAULT_SECONDS` sets for how long; the default is short, because the tests run often.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::RwLock;

use super::disaggregation::{comparable, free_port};
use super::harness::{COMPLETIONS, Random, Server};

const MODEL: &str = "qwen3";
/// `--disaggregation-timeout`.
const PATIENCE: u64 = 2;
/// Within which each request ends, whatever happens: both sides may lose their patience one after
/// the other while the machine is busy and a server is stopped.
const LIMIT: Duration = Duration::from_secs(30);
const CLIENTS: u64 = 6;

/// The faults of the next connections between the two servers.
const CLEAN: u8 = 0;
const DAMAGE: u8 = 1;
const STALL: u8 = 2;
const CUT: u8 = 3;

#[derive(Default)]
struct Counts {
    right: AtomicU64,
    refused: AtomicU64,
    unreachable: AtomicU64,
    abandoned: AtomicU64,
}

/// One of the two servers, which is started again after it was killed.
struct Side {
    flags: Vec<String>,
    server: RwLock<Server>,
}

impl Side {
    async fn start(flags: Vec<String>) -> Self {
        let server = RwLock::new(start(&flags).await);
        Self { flags, server }
    }

    async fn kill_and_start_again(&self) {
        let mut server = self.server.write().await;
        server.signal("-KILL");
        server.exit_code().await;
        *server = start(&self.flags).await;
    }

    async fn stop_for(&self, time: Duration) {
        let pid = self.server.read().await.pid().to_string();
        let signal = |name: &str| {
            let sent = std::process::Command::new("kill")
                .args([name, &pid])
                .status();
            assert!(sent.unwrap().success());
        };
        signal("-STOP");
        tokio::time::sleep(time).await;
        signal("-CONT");
    }

    async fn url(&self) -> (reqwest::Client, String) {
        let server = self.server.read().await;
        (server.http.clone(), server.url(COMPLETIONS))
    }
}

async fn start(flags: &[String]) -> Server {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    Server::of(MODEL, &flags).await
}

/// A bootstrap server that names a proxy in place of the KV port `kv`, and the proxy. Returns the
/// port of the bootstrap server.
async fn way(kv: u16, weather: Arc<AtomicU8>) -> u16 {
    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let bootstrap = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy_port = proxy.local_addr().unwrap().port();
    let port = bootstrap.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = bootstrap.accept().await.unwrap();
            tokio::spawn(async move {
                let mut head = [0; 4096];
                let _ = stream.read(&mut head).await;
                let body = format!("{{\"rank_ip\":\"127.0.0.1\",\"rank_port\":{proxy_port}}}");
                let length = body.len();
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
                );
                let _ = stream.write_all(answer.as_bytes()).await;
            });
        }
    });
    tokio::spawn(async move {
        let mut random = Random::new(3);
        loop {
            let (decode, _) = proxy.accept().await.unwrap();
            let at = random.within(0, 20_000);
            tokio::spawn(carry(decode, kv, weather.load(Ordering::Relaxed), at));
        }
    });
    port
}

/// Carries bytes between the two servers, and does to those of the prefill server what `weather`
/// says after `at` bytes.
async fn carry(decode: TcpStream, kv: u16, weather: u8, at: usize) {
    let Ok(prefill) = TcpStream::connect(("127.0.0.1", kv)).await else {
        return;
    };
    let (mut from_decode, mut to_decode) = decode.into_split();
    let (mut from_prefill, mut to_prefill) = prefill.into_split();
    let up = async { drop(tokio::io::copy(&mut from_decode, &mut to_prefill).await) };
    let down = async {
        let mut seen = 0;
        let mut buffer = vec![0; 4096];
        while let Ok(read @ 1..) = from_prefill.read(&mut buffer).await {
            if weather != CLEAN && (seen..seen + read).contains(&at) {
                match weather {
                    DAMAGE => buffer[at - seen] ^= 16,
                    STALL => tokio::time::sleep(Duration::from_secs(PATIENCE + 1)).await,
                    _ => return,
                }
            }
            seen += read;
            if to_decode.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    };
    // When one direction ends, both are closed.
    tokio::select! {
        () = up => {}
        () = down => {}
    }
}

async fn client(
    number: u64,
    pair: Arc<[Side; 2]>,
    port: u16,
    expected: Arc<Vec<(Value, Vec<Value>)>>,
    counts: Arc<Counts>,
    over: Arc<AtomicBool>,
) {
    let mut random = Random::new(100 + number);
    while !over.load(Ordering::Relaxed) {
        let (body, expected) = &expected[random.within(0, expected.len())];
        let mut body = body.clone();
        body["bootstrap_host"] = json!("127.0.0.1");
        body["bootstrap_port"] = json!(port);
        body["bootstrap_room"] = json!(random.next() >> 1);
        let send = async |side: &Side| {
            let (http, url) = side.url().await;
            let response = http.post(url).json(&body).send().await.ok()?;
            let status = response.status().as_u16();
            Some((status, response.text().await.ok()?))
        };
        let both = async { tokio::join!(send(&pair[0]), send(&pair[1])) };
        if random.within(0, 10) == 0 {
            // The client goes away.
            let patience = Duration::from_millis(random.within(1, 60) as u64);
            let _ = tokio::time::timeout(patience, both).await;
            counts.abandoned.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        let answers = tokio::time::timeout(LIMIT, both).await;
        let (_, decode) = answers.expect("every request ends in time");
        let count = match decode {
            Some((200, answer)) => {
                let mut answer = comparable(&answer);
                without_cached(&mut answer);
                assert_eq!(&answer, expected, "a wrong byte");
                &counts.right
            }
            Some((status, answer)) => {
                let error: Value = serde_json::from_str(&answer).unwrap();
                assert!(error["error"]["message"].is_string(), "{status}: {answer}");
                &counts.refused
            }
            // It was killed.
            None => &counts.unreachable,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

async fn faults(pair: &[Side; 2], weather: &AtomicU8, until: Instant) -> [u64; 5] {
    let mut random = Random::new(42);
    let mut done = [0; 5];
    while Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(random.within(100, 900) as u64)).await;
        let side = &pair[random.within(0, 2)];
        let time = Duration::from_millis(random.within(100, 3000) as u64);
        let kind = random.within(0, 5);
        match kind {
            0 => side.kill_and_start_again().await,
            1 => side.stop_for(time).await,
            _ => {
                weather.store([DAMAGE, STALL, CUT][kind - 2], Ordering::Relaxed);
                tokio::time::sleep(time).await;
                weather.store(CLEAN, Ordering::Relaxed);
            }
        }
        done[kind] += 1;
    }
    done
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_die_stall_and_damage_give_no_wrong_byte_and_lose_no_slot() {
    let seconds = std::env::var("HEARTH_FAULT_SECONDS");
    let seconds = seconds.map_or(15, |seconds| seconds.parse().unwrap());
    let kv = free_port();
    let flags = |more: &[&str]| {
        let patience = PATIENCE.to_string();
        let all = [
            "--prefill-chunk",
            "32",
            "--disaggregation-timeout",
            &patience,
        ];
        let all = all.iter().chain(more).map(|flag| (*flag).to_owned());
        all.collect::<Vec<_>>()
    };
    let one = start(&flags(&[])).await;
    let mut random = Random::new(9);
    let mut expected = Vec::new();
    for number in 0..24 {
        let length = random.within(10, 300);
        let body = json!({
            "prompt": random.tokens(length), "max_tokens": 12, "seed": number, "logprobs": 1,
            "temperature": number % 2, "ignore_eos": true,
        });
        let mut answer = comparable(&one.ok(COMPLETIONS, &body).await.to_string());
        without_cached(&mut answer);
        expected.push((body, answer));
    }
    drop(one);
    let bootstrap = free_port().to_string();
    let kv_port = kv.to_string();
    let prefill = [
        "--disaggregation-mode",
        "prefill",
        "--disaggregation-bootstrap-port",
        &bootstrap,
        "--disaggregation-kv-port",
        &kv_port,
    ];
    let pair = Arc::new([
        Side::start(flags(&prefill)).await,
        Side::start(flags(&["--disaggregation-mode", "decode"])).await,
    ]);
    let weather = Arc::new(AtomicU8::new(CLEAN));
    let port = way(kv, Arc::clone(&weather)).await;
    let (counts, over) = (
        Arc::new(Counts::default()),
        Arc::new(AtomicBool::new(false)),
    );
    let expected = Arc::new(expected);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let (pair, expected) = (Arc::clone(&pair), Arc::clone(&expected));
            let (counts, over) = (Arc::clone(&counts), Arc::clone(&over));
            tokio::spawn(client(number, pair, port, expected, counts, over))
        })
        .collect();
    let until = Instant::now() + Duration::from_secs(seconds);
    let [kills, stops, damages, stalls, cuts] = faults(&pair, &weather, until).await;
    over.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    for side in pair.iter() {
        side.server.read().await.wait_until_idle().await;
    }
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let right = count(&counts.right);
    println!(
        "{seconds} s: {kills} kills, {stops} stops, periods of {damages} x damage, {stalls} x stalls and {cuts} x \
         cuts; {right} right answers, {} errors, {} unreachable, {} abandoned",
        count(&counts.refused),
        count(&counts.unreachable),
        count(&counts.abandoned),
    );
    assert!(right > 0 && count(&counts.abandoned) > 0);
}

/// Removes the number of cached tokens, which depends on what was asked before.
fn without_cached(answer: &mut [Value]) {
    for value in answer {
        value["usage"]["prompt_tokens_details"] = Value::Null;
    }
}

//! Two ends of the KV protocol over loopback: what arrives, and how each fault ends.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::time::Duration;

use hearth_transfer::bootstrap;
use hearth_transfer::identity::Identity;
use hearth_transfer::listener::{KvListener, ListenError};
use hearth_transfer::pull::{KvClient, Received};
use hearth_transfer::secret::SharedSecret;
use hearth_transfer::{Pages, PullRequest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const PATIENCE: Duration = Duration::from_millis(400);
const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

fn identity() -> Identity {
    Identity {
        model: "0123".to_owned(),
        dtype: "bf16".to_owned(),
        computed_in: "bf16".to_owned(),
        layout: "layers=2 kv_heads=1 head_dim=8".to_owned(),
        token_bytes: 4,
        page_size: 1,
    }
}

fn pull(room: u64) -> PullRequest {
    PullRequest {
        room,
        from: 2,
        tokens: 10,
        digest: 77,
    }
}

fn pages(from: usize, tokens: usize) -> Pages {
    let bytes = (0..4 * tokens).map(|byte| (byte + from) as u8).collect();
    Pages {
        from,
        tokens,
        bytes,
    }
}

struct Prefill {
    listener: KvListener,
    port: u16,
}

impl Prefill {
    async fn start(secret: Option<&str>) -> Self {
        let secret = secret.map(SharedSecret::new);
        let listener = KvListener::bind(ANY, identity(), secret, PATIENCE)
            .await
            .unwrap();
        let (server, addresses) = bootstrap::bind("127.0.0.1", 0, &listener).unwrap();
        actix_web::rt::spawn(server);
        Self {
            listener,
            port: addresses[0].port(),
        }
    }
}

fn client(identity: Identity, secret: Option<&str>) -> KvClient {
    KvClient::new(identity, secret.map(SharedSecret::new), PATIENCE).unwrap()
}

async fn refusal(prefill: &Prefill, client: &KvClient, room: u64) -> String {
    let pulled = client.pull("127.0.0.1", prefill.port, pull(room)).await;
    let error = match pulled {
        Ok(mut pulling) => pulling.next().await.unwrap_err(),
        Err(error) => error,
    };
    error.to_string()
}

/// Moves a whole request, with the decode server first or second.
async fn moves(prefill: &Prefill, client: &KvClient, room: u64, decode_first: bool) {
    let send = async {
        if decode_first {
            tokio::time::sleep(PATIENCE / 4).await;
        }
        let mut offer = prefill.listener.offer(room).unwrap();
        let mut sending = offer.peer().await.unwrap();
        assert_eq!(sending.request(), pull(room));
        sending.pages(pages(2, 5)).await.unwrap();
        sending.alive().await.unwrap();
        sending.pages(pages(7, 3)).await.unwrap();
        sending.output(b"{}".to_vec()).await.unwrap();
    };
    let receive = async {
        if !decode_first {
            tokio::time::sleep(PATIENCE / 4).await;
        }
        let pulling = client.pull("127.0.0.1", prefill.port, pull(room)).await;
        let mut pulling = pulling.unwrap();
        assert_eq!(pulling.next().await.unwrap(), Received::Pages(pages(2, 5)));
        assert_eq!(pulling.next().await.unwrap(), Received::Pages(pages(7, 3)));
        let output = Received::Output(b"{}".to_vec());
        assert_eq!(pulling.next().await.unwrap(), output);
        pulling.done().await.unwrap();
    };
    tokio::join!(send, receive);
    assert_eq!(prefill.listener.rooms().waiting(), 0);
}

#[actix_web::test]
async fn a_request_arrives_whole_whichever_side_comes_first() {
    for secret in [None, Some("hush")] {
        let prefill = Prefill::start(secret).await;
        let client = client(identity(), secret);
        moves(&prefill, &client, 1, true).await;
        moves(&prefill, &client, 1, false).await;
        moves(&prefill, &client, u64::MAX >> 1, false).await;
    }
}

#[actix_web::test]
async fn servers_that_differ_refuse_each_other_and_name_both_values() {
    let prefill = Prefill::start(None).await;
    let others = [
        Identity {
            model: "4567".to_owned(),
            ..identity()
        },
        Identity {
            dtype: "f32".to_owned(),
            ..identity()
        },
        Identity {
            layout: "layers=3".to_owned(),
            ..identity()
        },
        Identity {
            page_size: 16,
            ..identity()
        },
    ];
    let texts = [
        "the model digest of the prefill server is 0123, that of the decode server is 4567",
        "the KV number format of the prefill server is bf16, that of the decode server is f32",
        "is layers=2 kv_heads=1 head_dim=8, that of the decode server is layers=3",
        "the page size of the prefill server is 1, that of the decode server is 16",
    ];
    for (other, text) in others.into_iter().zip(texts) {
        let error = refusal(&prefill, &client(other, None), 1).await;
        assert!(error.contains(text), "{error}");
    }
    moves(&prefill, &client(identity(), None), 1, false).await;
}

#[actix_web::test]
async fn without_the_secret_nothing_is_served_and_nothing_is_open_to_others() {
    let prefill = Prefill::start(Some("hush")).await;
    let error = refusal(&prefill, &client(identity(), None), 1).await;
    assert!(error.contains("asks for a secret"), "{error}");
    let error = refusal(&prefill, &client(identity(), Some("guess")), 1).await;
    assert!(error.contains("has another secret"), "{error}");
    let open = Prefill::start(None).await;
    let error = refusal(&open, &client(identity(), Some("hush")), 1).await;
    assert!(error.contains("without a secret"), "{error}");
    let all = "0.0.0.0:0".parse().unwrap();
    let refused = KvListener::bind(all, identity(), None, PATIENCE).await;
    assert!(matches!(refused, Err(ListenError::SecretWanted(_))));
    moves(&prefill, &client(identity(), Some("hush")), 1, true).await;
}

#[actix_web::test]
async fn a_side_that_stays_alone_ends_in_time_and_leaves_no_room_behind() {
    let prefill = Prefill::start(None).await;
    let client = client(identity(), None);
    let error = refusal(&prefill, &client, 5).await;
    let known = [
        "no request with room 5 came within 0.4 s",
        "sent nothing for 0.4 s",
    ];
    assert!(known.iter().any(|text| error.contains(text)), "{error}");
    tokio::time::sleep(PATIENCE).await;
    assert_eq!(prefill.listener.rooms().waiting(), 0);
    drop(prefill.listener.offer(6).unwrap());
    assert_eq!(prefill.listener.rooms().waiting(), 0);
    let offer = prefill.listener.offer(6).unwrap();
    let taken = prefill.listener.offer(6).unwrap_err().to_string();
    assert!(taken.contains("room 6"), "{taken}");
    drop(offer);
    moves(&prefill, &client, 6, true).await;
}

#[actix_web::test]
async fn each_side_notices_that_the_other_one_is_gone_or_gives_up() {
    let prefill = Prefill::start(None).await;
    let client = client(identity(), None);
    let mut offer = prefill.listener.offer(1).unwrap();
    let pulling = client
        .pull("127.0.0.1", prefill.port, pull(1))
        .await
        .unwrap();
    let sending = offer.peer().await.unwrap();
    drop(pulling);
    let gone = tokio::time::timeout(PATIENCE, sending.gone()).await;
    gone.expect("a closed connection is noticed");

    let mut offer = prefill.listener.offer(2).unwrap();
    let mut pulling = client
        .pull("127.0.0.1", prefill.port, pull(2))
        .await
        .unwrap();
    let mut sending = offer.peer().await.unwrap();
    sending.pages(pages(2, 1)).await.unwrap();
    pulling.next().await.unwrap();
    sending.fail("no memory".to_owned()).await;
    let error = pulling.next().await.unwrap_err().to_string();
    assert_eq!(error, "the other server gave up: no memory");

    let mut offer = prefill.listener.offer(3).unwrap();
    let mut pulling = client
        .pull("127.0.0.1", prefill.port, pull(3))
        .await
        .unwrap();
    drop(offer.peer().await.unwrap());
    pulling.next().await.unwrap_err();
}

#[actix_web::test]
async fn pages_that_do_not_follow_or_do_not_fit_are_refused() {
    let prefill = Prefill::start(None).await;
    let client = client(identity(), None);
    let short = Pages {
        bytes: vec![0; 3],
        ..pages(2, 1)
    };
    for (room, wrong) in (0..).zip([pages(3, 1), pages(2, 9), pages(2, 0), short]) {
        let mut offer = prefill.listener.offer(room).unwrap();
        let pulling = client.pull("127.0.0.1", prefill.port, pull(room)).await;
        let mut pulling = pulling.unwrap();
        let mut sending = offer.peer().await.unwrap();
        sending.pages(wrong).await.unwrap();
        let error = pulling.next().await.unwrap_err().to_string();
        assert!(
            error.contains("a message is not understood: pages of"),
            "{error}"
        );
    }
}

/// A proxy that flips one bit of what the prefill server sends, after `skip` bytes.
async fn damaging(target: SocketAddr, skip: usize) -> SocketAddr {
    let listener = TcpListener::bind(ANY).await.unwrap();
    let address = listener.local_addr().unwrap();
    actix_web::rt::spawn(async move {
        let (decode, _) = listener.accept().await.unwrap();
        let prefill = TcpStream::connect(target).await.unwrap();
        let (mut from_decode, mut to_decode) = decode.into_split();
        let (mut from_prefill, mut to_prefill) = prefill.into_split();
        let up = async { drop(tokio::io::copy(&mut from_decode, &mut to_prefill).await) };
        let down = async {
            let mut seen = 0;
            let mut buffer = [0; 64];
            while let Ok(read @ 1..) = from_prefill.read(&mut buffer).await {
                if (seen..seen + read).contains(&skip) {
                    buffer[skip - seen] ^= 4;
                }
                seen += read;
                if to_decode.write_all(&buffer[..read]).await.is_err() {
                    break;
                }
            }
        };
        tokio::join!(up, down);
    });
    address
}

#[actix_web::test]
async fn a_bit_that_flips_on_the_way_ends_the_transfer() {
    let prefill = Prefill::start(None).await;
    // The hello, the identity and the pages, wherever the bit is.
    for (room, skip) in (0..).zip([3, 12, 30, 150, 300, 420, 520]) {
        let proxy = damaging(prefill.listener.address(), skip).await;
        // A bootstrap server that names the proxy in place of the KV port.
        let route = actix_web::HttpServer::new(move || {
            actix_web::App::new().default_service(actix_web::web::to(move || async move {
                let (ip, port) = (proxy.ip(), proxy.port());
                format!("{{\"rank_ip\": \"{ip}\", \"rank_port\": {port}}}")
            }))
        });
        let route = route.workers(1).disable_signals().bind(ANY).unwrap();
        let port = route.addrs()[0].port();
        actix_web::rt::spawn(route.run());
        let listener = prefill.listener.clone();
        let sender = actix_web::rt::spawn(async move {
            let mut offer = listener.offer(room).unwrap();
            let peer = tokio::time::timeout(2 * PATIENCE, offer.peer()).await;
            if let Ok(Ok(mut sending)) = peer {
                let _ = sending.pages(pages(2, 8)).await;
                let _ = sending.output(vec![b' '; 500]).await;
            }
        });
        let client = client(identity(), None);
        let received = async {
            let mut pulling = client.pull("127.0.0.1", port, pull(room)).await?;
            loop {
                if let Received::Output(_) = pulling.next().await? {
                    return Ok::<_, hearth_transfer::WireError>(());
                }
            }
        };
        received.await.expect_err("the damage is noticed");
        sender.await.unwrap();
    }
}

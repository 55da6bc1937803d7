//! Starts this server's part of prefill/decode disaggregation.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use actix_web::dev::ServerHandle;
use actix_web::rt;
use anyhow::{Context, Result};
use hearth_api::disaggregation::{DecodeSide, Disaggregation};
use hearth_api::served::Served;
use hearth_model::checkpoint::Checkpoint;
use hearth_transfer::bootstrap;
use hearth_transfer::digest::Digest;
use hearth_transfer::identity::Identity;
use hearth_transfer::listener::KvListener;
use hearth_transfer::pull::KvClient;
use hearth_transfer::secret::SharedSecret;

use crate::config::{Config, DisaggregationMode};

/// Samples of a tensor that the digest of a model reads, and the bytes of each.
const SAMPLES: usize = 64;
const SAMPLE: usize = 64;

/// The result of [`start`].
pub struct Started {
    pub part: Disaggregation,
    /// The bootstrap server of a prefill server.
    pub bootstrap: Option<ServerHandle>,
}

/// Opens the ports of a prefill server, or prepares the connections of a decode server.
///
/// # Errors
/// A port cannot be opened, or would be open to other machines without a secret.
pub async fn start(config: &Config, served: &Served) -> Result<Started> {
    let identity = Identity {
        model: served.info.digest.clone(),
        computed_in: served.info.dtype.clone(),
        dtype: served.info.kv_cache_dtype.clone(),
        layout: served.info.kv_layout.clone(),
        token_bytes: served.engine.kv_token_bytes(),
        page_size: served.engine_config.page_size,
    };
    let secret = config.disaggregation_secret.as_ref();
    let secret = secret.map(|secret| SharedSecret::new(secret.reveal()));
    let patience = Duration::from_secs(config.disaggregation_timeout);
    match config.disaggregation_mode {
        DisaggregationMode::Null => Ok(Started {
            part: Disaggregation::Null,
            bootstrap: None,
        }),
        DisaggregationMode::Prefill => {
            let address = address(&config.host, config.disaggregation_kv_port)?;
            let listener = KvListener::bind(address, identity, secret, patience).await?;
            let port = config.disaggregation_bootstrap_port;
            let (server, addresses) = bootstrap::bind(&config.host, port, &listener)?;
            let handle = server.handle();
            rt::spawn(server);
            tracing::info!(
                bootstrap_port = addresses.first().map(SocketAddr::port),
                kv_port = listener.address().port(),
                "computes prompts for decode servers"
            );
            Ok(Started {
                part: Disaggregation::Prefill(listener),
                bootstrap: Some(handle),
            })
        }
        DisaggregationMode::Decode => {
            let client = KvClient::new(identity, secret, patience)?;
            let side = DecodeSide {
                client,
                bootstrap_port: config.disaggregation_bootstrap_port,
                fallback: config.disaggregation_fallback.into(),
            };
            tracing::info!("generates the outputs of prompts that prefill servers compute");
            Ok(Started {
                part: Disaggregation::Decode(Arc::new(side)),
                bootstrap: None,
            })
        }
    }
}

fn address(host: &str, port: u16) -> Result<SocketAddr> {
    let mut addresses = (host, port)
        .to_socket_addrs()
        .with_context(|| format!("cannot find the address of {host}"))?;
    let first = addresses.next();
    first.with_context(|| format!("{host} has no address"))
}

/// A digest of the configuration and of samples of every tensor, which differs where the keys and
/// values of two models differ. It reads a few KiB of each tensor, so it takes no time.
pub fn digest(checkpoint: &Checkpoint) -> String {
    let mut digest = Digest::default();
    digest.update(format!("{:?}", checkpoint.config).as_bytes());
    // Random weights follow from the configuration, and making them takes long.
    let has_files = !checkpoint.weights.names().is_empty();
    let tensors = checkpoint.config.tensors().into_iter();
    // A tensor that is missing is an error of the load that follows.
    for (name, _) in tensors.filter(|_| has_files) {
        for (format, bytes) in checkpoint.weights.stored(&name) {
            digest.update(name.as_bytes());
            digest.update(format.as_bytes());
            let step = (bytes.len() / SAMPLES).max(SAMPLE);
            for start in (0..bytes.len()).step_by(step) {
                let end = bytes.len().min(start + SAMPLE);
                digest.update(&bytes[start..end]);
            }
        }
        // The system may have mapped the whole tensor for its samples, which would count as memory of
        // this process until the tensor is loaded.
        checkpoint.weights.release(&name);
    }
    format!("{:016x}", digest.value())
}

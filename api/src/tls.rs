//! `--tls-cert` and `--tls-key`: from two PEM files to the configuration of a TLS listener.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Why the two files cannot be used for TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("--tls-cert {path}: {error}")]
    Cert { path: PathBuf, error: pem::Error },
    #[error("--tls-cert {0} has no certificate (-----BEGIN CERTIFICATE-----)")]
    NoCert(PathBuf),
    #[error("--tls-key {path}: {error}")]
    Key { path: PathBuf, error: pem::Error },
    #[error(
        "--tls-key {0} has no private key (-----BEGIN PRIVATE KEY-----, RSA and EC ones too; none \
         that is encrypted)"
    )]
    NoKey(PathBuf),
    #[error("--tls-key {key} is not the key of --tls-cert {cert}")]
    Mismatch { cert: PathBuf, key: PathBuf },
    #[error("--tls-cert {cert} and --tls-key {key}: {error}")]
    Refused {
        cert: PathBuf,
        key: PathBuf,
        error: rustls::Error,
    },
}

/// TLS 1.2 and 1.3 with the chain in `cert`, the server's own certificate first, and its
/// private key in `key`. Clients are not asked for certificates.
///
/// # Errors
/// A file that cannot be read or holds something else, or two that do not belong together.
pub fn load(cert: &Path, key: &Path) -> Result<ServerConfig, TlsError> {
    let unreadable = |error| TlsError::Cert {
        path: cert.to_owned(),
        error,
    };
    let chain = CertificateDer::pem_file_iter(cert).map_err(unreadable)?;
    let chain: Vec<_> = chain.collect::<Result<_, _>>().map_err(unreadable)?;
    if chain.is_empty() {
        return Err(TlsError::NoCert(cert.to_owned()));
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| match error {
        pem::Error::NoItemsFound => TlsError::NoKey(key.to_owned()),
        error => TlsError::Key {
            path: key.to_owned(),
            error,
        },
    })?;
    // The provider is named, because several libraries in one process may install different ones
    // as the default.
    let provider = Arc::new(ring::default_provider());
    let versions =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = versions.and_then(|versions| {
        versions
            .with_no_client_auth()
            .with_single_cert(chain, private)
    });
    config.map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => TlsError::Mismatch {
            cert: cert.to_owned(),
            key: key.to_owned(),
        },
        error => TlsError::Refused {
            cert: cert.to_owned(),
            key: key.to_owned(),
            error,
        },
    })
}

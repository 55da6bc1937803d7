//! The workers that the settings name.

use reqwest::Url;

use super::RouterConfig;
use super::check::ConfigError;

/// A prefill worker: its URL, and the port of its bootstrap server if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefillUrl {
    pub url: String,
    pub bootstrap_port: Option<u16>,
}

/// The URL of a worker without a slash at its end.
///
/// # Errors
/// The text is not an HTTP URL with a host.
pub fn worker_url(field: &'static str, given: &str) -> Result<String, ConfigError> {
    let invalid = || ConfigError::Bound {
        field,
        bound: "URLs such as http://10.0.0.1:8000",
        given: format!("{given:?}"),
    };
    let url = Url::parse(given).map_err(|_| invalid())?;
    let http = matches!(url.scheme(), "http" | "https");
    if !http || url.host_str().is_none() || url.query().is_some() || url.fragment().is_some() {
        return Err(invalid());
    }
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

impl RouterConfig {
    /// The URLs of one list of workers, each once.
    ///
    /// # Errors
    /// One is invalid, or one is there twice.
    pub(super) fn urls(field: &'static str, given: &[String]) -> Result<Vec<String>, ConfigError> {
        let mut urls = Vec::new();
        for given in given {
            let url = worker_url(field, given)?;
            if urls.contains(&url) {
                return Err(ConfigError::Bound {
                    field,
                    bound: "URLs that differ",
                    given: format!("{given:?} twice"),
                });
            }
            urls.push(url);
        }
        Ok(urls)
    }

    /// The workers of regular mode.
    ///
    /// # Errors
    /// See [`worker_url`].
    pub fn regular_workers(&self) -> Result<Vec<String>, ConfigError> {
        Self::urls("worker_urls", &self.worker_urls)
    }

    /// The decode workers.
    ///
    /// # Errors
    /// See [`worker_url`].
    pub fn decode_workers(&self) -> Result<Vec<String>, ConfigError> {
        Self::urls("decode", &self.decode)
    }

    /// The prefill workers. The list has URLs, of which each may be followed by a port or `none`.
    ///
    /// # Errors
    /// A URL or a port is invalid, or a port follows no URL.
    pub fn prefill_workers(&self) -> Result<Vec<PrefillUrl>, ConfigError> {
        let mut workers: Vec<PrefillUrl> = Vec::new();
        let mut port_may_follow = false;
        for word in &self.prefill {
            if word.contains("://") {
                let url = worker_url("prefill", word)?;
                workers.push(PrefillUrl {
                    url,
                    bootstrap_port: None,
                });
                port_may_follow = true;
                continue;
            }
            let port = match word.as_str() {
                "none" => Some(None),
                word => word.parse().ok().filter(|&port| port != 0).map(Some),
            };
            match (workers.last_mut(), port) {
                (Some(worker), Some(port)) if port_may_follow => worker.bootstrap_port = port,
                _ => {
                    return Err(ConfigError::Bound {
                        field: "prefill",
                        bound: "URLs, each with a port from 1 to 65535 or `none` after it, or nothing",
                        given: format!("{word:?}"),
                    });
                }
            }
            port_may_follow = false;
        }
        let urls: Vec<String> = workers.iter().map(|worker| worker.url.clone()).collect();
        Self::urls("prefill", &urls)?;
        Ok(workers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefill(words: &[&str]) -> Result<Vec<(String, Option<u16>)>, String> {
        let config = RouterConfig {
            prefill: words.iter().map(|&word| word.to_owned()).collect(),
            ..RouterConfig::default()
        };
        let workers = config
            .prefill_workers()
            .map_err(|error| error.to_string())?;
        let pairs = workers.into_iter().map(|p| (p.url, p.bootstrap_port));
        Ok(pairs.collect())
    }

    #[test]
    fn a_prefill_url_may_have_a_port_or_none_after_it() {
        let words = [
            "http://a:1/",
            "8998",
            "http://b:2",
            "none",
            "http://[::1]:3",
        ];
        let expected = [
            ("http://a:1".to_owned(), Some(8998)),
            ("http://b:2".to_owned(), None),
            ("http://[::1]:3".to_owned(), None),
        ];
        assert_eq!(prefill(&words).unwrap(), expected);
    }

    #[test]
    fn other_words_are_refused_with_their_text() {
        for (words, named) in [
            (&["8998"][..], "8998"),
            (&["http://a:1", "70000"], "70000"),
            (&["http://a:1", "0"], "\"0\""),
            (&["http://a:1", "1", "2"], "\"2\""),
            (&["ftp://a:1"], "ftp://a:1"),
            (&["http://a:1", "http://a:1/"], "http://a:1"),
        ] {
            let error = prefill(words).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }
}

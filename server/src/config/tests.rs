use std::collections::BTreeSet;
use std::path::Path;

use super::parts::without_password;
use super::*;

#[test]
fn the_password_in_an_otlp_endpoint_is_hidden() {
    for (given, shown) in [
        ("http://a:b@host:4318/v1", "http://***@host:4318/v1"),
        ("a:b@host:4317", "***@host:4317"),
        ("http://host:4318/a@b", "http://host:4318/a@b"),
    ] {
        assert_eq!(without_password(given), shown);
    }
}
use figment::Jail;
use serde_json::json;

fn resolve(file: Option<&str>, flags: serde_json::Value) -> Result<Config, String> {
    Config::resolve(file.map(Path::new), &flags).map_err(|error| error.to_string())
}

#[test]
fn without_any_layer_every_setting_has_its_default() {
    Jail::expect_with(|_| {
        assert_eq!(resolve(None, json!({})).unwrap(), Config::default());
        Ok(())
    });
}

#[test]
fn flags_beat_environment_beats_file_beats_defaults() {
    Jail::expect_with(|jail| {
        jail.create_file(
            "hearth.toml",
            "port = 1\nmax_queue = 2\nprefill_chunk = 3\n",
        )?;
        jail.set_env("HEARTH_PORT", "4");
        jail.set_env("HEARTH_MAX_QUEUE", "5");
        let config = resolve(None, json!({"port": 6})).unwrap();
        assert_eq!(
            (config.port, config.max_queue, config.prefill_chunk),
            (6, 5, 3)
        );
        assert_eq!(config.host, Config::default().host);
        Ok(())
    });
}

#[test]
fn a_certificate_and_its_key_are_given_together() {
    Jail::expect_with(|_| {
        for (given, missing) in [("tls_cert", "tls_key"), ("tls_key", "tls_cert")] {
            let error = resolve(None, json!({given: "x.pem"})).unwrap_err();
            let expected = format!("`{missing}` must be given with `{given}`");
            assert!(error.contains(&expected), "{error}");
        }
        Ok(())
    });
}

#[test]
fn files_of_cached_prefixes_need_a_cache_and_a_directory() {
    Jail::expect_with(|_| {
        for (given, field) in [
            (
                json!({"cache_dir": "x", "prefix_cache": false}),
                "`cache_dir`",
            ),
            (json!({"cache_dir_bytes": 5}), "`cache_dir_bytes`"),
        ] {
            let error = resolve(None, given).unwrap_err();
            assert!(error.contains(field), "{error}");
        }
        let config = resolve(None, json!({"cache_dir": "x", "cache_dir_bytes": 5})).unwrap();
        assert_eq!(config.cache_dir_bytes, 5);
        Ok(())
    });
}

#[test]
fn an_unknown_key_in_the_file_is_an_error_that_names_it() {
    Jail::expect_with(|jail| {
        jail.create_file("hearth.toml", "prot = 1\n")?;
        let error = resolve(None, json!({})).unwrap_err();
        assert!(
            error.contains("unknown key `prot`, did you mean `port`?")
                && error.contains("hearth.toml"),
            "{error}"
        );
        Ok(())
    });
}

#[test]
fn an_unknown_environment_variable_is_reported_and_does_nothing() {
    Jail::expect_with(|jail| {
        jail.set_env("HEARTH_PORT_8000_TCP", "tcp://10.0.0.1:8000");
        jail.set_env("HEARTH_MAX_QUUE", "1");
        jail.set_env("HEARTH_CONFIG", "hearth.toml");
        assert_eq!(resolve(None, json!({})).unwrap(), Config::default());
        // The environment of the test may have others.
        let unknown = Config::unknown_environment();
        assert!(unknown.contains(&("HEARTH_PORT_8000_TCP".to_owned(), None)));
        let typo = (
            "HEARTH_MAX_QUUE".to_owned(),
            Some("HEARTH_MAX_QUEUE".to_owned()),
        );
        assert!(unknown.contains(&typo), "{unknown:?}");
        assert!(!unknown.iter().any(|(name, _)| name == "HEARTH_CONFIG"));
        Ok(())
    });
}

#[test]
fn the_list_of_keys_matches_the_struct() {
    let full = Config {
        model: Some(String::new()),
        served_model_name: Some(String::new()),
        max_model_len: Some(1),
        kv_tokens: Some(1),
        max_batch_tokens: Some(1),
        api_key: "a".parse().ok(),
        admin_api_key: "a".parse().ok(),
        disaggregation_secret: "a".parse().ok(),
        quantization: Some(Quantization::Int8),
        speculative_config: Some(String::new()),
        speculative_algorithm: Some(String::new()),
        speculative_draft_model_path: Some(String::new()),
        speculative_num_draft_tokens: Some(1),
        max_lora_rank: Some(1),
        max_lora_tables: Some(1),
        max_cpu_loras: Some(1),
        lora_dir: Some("".into()),
        cache_dir: Some("".into()),
        tool_call_parser: Some(ToolCallParser::Hermes),
        reasoning_parser: Some(ReasoningParser::Qwen3),
        api_keys_file: Some("".into()),
        allowed_hosts: Some(String::new()),
        cors: Some(String::new()),
        tls_cert: Some("".into()),
        tls_key: Some("".into()),
        kv_events_config: Some(String::new()),
        show_hidden_metrics_for_version: Some(String::new()),
        custom_histogram_buckets: Some(String::new()),
        otlp_endpoint: Some(String::new()),
        otlp_protocol: Some(OtlpProtocol::Http),
        collect_detailed_traces: Some(String::new()),
        stall_trace_dir: Some("".into()),
        ..Config::default()
    };
    let json = serde_json::to_value(full).unwrap();
    let fields: BTreeSet<&str> = json
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(fields, Config::keys().collect());
    assert_eq!(fields.len(), Config::keys().count(), "a key is there twice");
}

#[test]
fn a_wrong_type_names_the_key_and_what_was_found() {
    Jail::expect_with(|jail| {
        jail.create_file("other.toml", "port = \"high\"\n")?;
        let error = resolve(Some("other.toml"), json!({})).unwrap_err();
        assert!(error.contains("port") && error.contains("high"), "{error}");
        jail.set_env("HEARTH_KV_TOKENS", "abc");
        let error = resolve(None, json!({})).unwrap_err();
        let message = "configuration: `kv_tokens` must be a whole number of at least 0, given string \"abc\" \
                       (environment variable HEARTH_KV_TOKENS)";
        assert_eq!(error, message);
        Ok(())
    });
}

#[test]
fn a_named_file_must_exist() {
    Jail::expect_with(|_| {
        let error = resolve(Some("absent.toml"), json!({})).unwrap_err();
        assert_eq!(error, "configuration file absent.toml does not exist");
        Ok(())
    });
}

#[test]
fn zero_is_refused_for_settings_that_must_be_positive() {
    Jail::expect_with(|_| {
        let error = resolve(None, json!({"max_queue": 0})).unwrap_err();
        assert_eq!(
            error,
            "configuration: `max_queue` must be at least 1, given 0"
        );
        Ok(())
    });
}

#[test]
fn http_workers_are_bounded_and_isolated_caches_need_keys() {
    Jail::expect_with(|_| {
        let error = resolve(None, json!({"http_workers": 2000})).unwrap_err();
        assert!(
            error.contains("`http_workers` must be at most 1024"),
            "{error}"
        );
        let error = resolve(None, json!({"cache_isolation": "key"})).unwrap_err();
        assert!(
            error.contains("`cache_isolation` must be none without"),
            "{error}"
        );
        let keys = json!({"cache_isolation": "key", "api_keys_file": "keys.toml"});
        assert!(resolve(None, keys).unwrap().http().isolate_caches);
        Ok(())
    });
}

#[test]
fn an_empty_api_key_is_refused_and_keys_are_hidden_from_others() {
    Jail::expect_with(|jail| {
        let error = resolve(None, json!({"api_key": ""})).unwrap_err();
        assert!(
            error.contains("`api_key` must be at least 1 character"),
            "{error}"
        );
        jail.set_env("HEARTH_API_KEY", "open sesame");
        let config = resolve(None, json!({"admin_api_key": "lift up"})).unwrap();
        let printed = serde_json::to_string(&config.without_keys()).unwrap();
        // This is the value that `/server_info` shows.
        let served = config.http().shown.to_string();
        for shown in [printed, served] {
            assert!(shown.contains("admin_api_key"), "{shown}");
            assert!(
                !shown.contains("sesame") && !shown.contains("lift"),
                "{shown}"
            );
        }
        assert!(!format!("{config:?}").contains("sesame"));
        Ok(())
    });
}

#[test]
fn a_context_of_one_token_is_refused() {
    Jail::expect_with(|_| {
        let error = resolve(None, json!({"max_model_len": 1})).unwrap_err();
        assert!(
            error.contains("`max_model_len` must be at least 2") && error.ends_with("given 1"),
            "{error}"
        );
        assert!(resolve(None, json!({"max_model_len": 2})).is_ok());
        Ok(())
    });
}

#[test]
fn quiet_commands_log_warnings_unless_a_layer_sets_another_level() {
    Jail::expect_with(|jail| {
        let level = |flags: serde_json::Value| {
            let config = Config::resolve_quiet(None, &flags);
            config.map(|config| config.log_level).unwrap()
        };
        assert_eq!(level(json!({})), "warn");
        assert_eq!(level(json!({"log_level": "debug"})), "debug");
        jail.set_env("HEARTH_LOG_LEVEL", "info");
        assert_eq!(level(json!({})), "info");
        Ok(())
    });
}

#[test]
fn the_printed_configuration_reads_back_as_itself() {
    Jail::expect_with(|jail| {
        let given = json!({"model": "org/name", "kv_tokens": 4096, "prefix_cache": false});
        let config = resolve(None, given).unwrap();
        jail.create_file("printed.toml", &config.to_toml())?;
        assert_eq!(resolve(Some("printed.toml"), json!({})).unwrap(), config);
        Ok(())
    });
}

#[test]
fn the_model_id_is_the_served_name_or_the_last_part_of_the_path() {
    Jail::expect_with(|jail| {
        jail.create_dir("models/qwen")?;
        let id = |flags| resolve(None, flags).unwrap().model_id();
        assert_eq!(id(json!({})), "hearth-tiny");
        assert_eq!(id(json!({"model": "models/qwen"})), "qwen");
        assert_eq!(id(json!({"model": "org/name"})), "org/name");
        assert_eq!(
            id(json!({"model": "org/name", "served_model_name": "x"})),
            "x"
        );
        let config = resolve(None, json!({"served_model_name": "x, y,z"})).unwrap();
        assert_eq!(
            (config.model_id(), config.model_aliases()),
            ("x".into(), vec!["y".into(), "z".into()])
        );
        Ok(())
    });
}

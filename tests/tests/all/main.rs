//! End-to-end tests: they start the `hearth` binary with a small real model on the CPU and talk to
//! it over HTTP.
//!
//! Build the binary first (`cargo build --release --bin hearth`, or without `--release`), or name
//! one in `HEARTH_BIN`. Most tests serve a tiny random checkpoint of `model/goldens` with a
//! tokenizer whose tokens are bytes; those in [`embedded`] serve the model that is compiled into
//! the binary.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bench;
mod browser;
mod cache_dir;
mod commands;
mod deploy_compose;
mod deploy_manifests;
mod disaggregation;
mod disaggregation_faults;
mod disaggregation_routers;
mod disconnects;
mod doctor;
mod embedded;
mod examples;
mod gguf;
mod gpu;
mod harness;
mod host_cache;
mod identical_bits;
mod identical_outputs;
mod kv_cache_dtype;
mod kv_events;
mod large_bodies;
mod logs;
mod lora;
mod lora_tables;
mod metrics;
mod metrics_documented;
mod metrics_faults;
mod metrics_formats;
mod metrics_prometheus;
mod metrics_pushed;
mod policies;
mod programs;
mod python_clients;
mod queue;
#[path = "../../../client/tests/language/random.rs"]
mod random_programs;
mod refused_bodies;
mod refused_fields;
mod shutdown;
mod soak;
mod sockets;
mod speculation;
mod structured;
mod terminal;
mod top;
mod traces;
mod traces_disaggregation;
mod traces_labels;
mod traces_names;
mod traces_rotel;

//! Sets `hearth_tiny` if the files of the embedded model exist, so that they are compiled in.

use std::path::Path;

const DIR: &str = "hearth-tiny";
const FILES: [&str; 5] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors",
];

fn main() {
    println!("cargo::rustc-check-cfg=cfg(hearth_tiny)");
    println!("cargo::rerun-if-changed={DIR}");
    let missing: Vec<&str> = FILES
        .into_iter()
        .filter(|file| !Path::new(DIR).join(file).exists())
        .collect();
    if missing.is_empty() {
        println!("cargo::rustc-cfg=hearth_tiny");
    } else {
        println!(
            "cargo::warning=no model is embedded: {DIR} lacks {}",
            missing.join(", ")
        );
    }
}

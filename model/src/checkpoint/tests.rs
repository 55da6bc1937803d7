use std::fs;

use super::*;
use crate::weights::Format;

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens")
}

/// A copy of a golden checkpoint with a tokenizer, which tests may damage.
struct Copy(PathBuf);

impl Copy {
    fn new(name: &str) -> Self {
        let dir =
            std::env::temp_dir().join(format!("hearth-checkpoint-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        let copy = Self(dir);
        for from in [
            goldens().join("qwen3"),
            goldens().join("tokenizers/byte-level"),
        ] {
            for entry in fs::read_dir(from).unwrap() {
                let entry = entry.unwrap();
                fs::copy(entry.path(), copy.0.join(entry.file_name())).unwrap();
            }
        }
        copy
    }

    fn write(&self, file: &str, text: &str) -> &Self {
        fs::write(self.0.join(file), text).unwrap();
        self
    }

    fn remove(&self, file: &str) -> &Self {
        fs::remove_file(self.0.join(file)).unwrap();
        self
    }

    fn open(&self) -> Result<Checkpoint, CheckpointError> {
        Checkpoint::open_dir(&self.0, LoadFormat::Safetensors)
    }

    fn error(&self) -> String {
        self.open().err().expect("an error").to_string()
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_directory_opens_with_all_its_parts() {
    let copy = Copy::new("whole");
    copy.write(
        "generation_config.json",
        r#"{"eos_token_id": [5, 7], "temperature": 0.5}"#,
    );
    copy.write(
        "chat_template.jinja",
        "{{ eos_token }}{{ messages[0].content }}",
    );
    let checkpoint = copy.open().unwrap();
    assert!(checkpoint.name.starts_with("hearth-checkpoint-whole"));
    assert_eq!(checkpoint.config.vocab_size, 256);
    assert_eq!(checkpoint.generation.temperature, Some(0.5));
    assert_eq!(
        checkpoint.eos_token_ids(),
        [2, 5, 7],
        "2 is the tokenizer's <|im_end|>"
    );
    assert!(checkpoint.tokenizer().unwrap().vocab_size() > 0);
    assert!(checkpoint.weights.contains("model.norm.weight"));
    let prompt = checkpoint
        .chat_template
        .unwrap()
        .render(crate::chat_template::ChatInput {
            messages: &serde_json::json!([{"role": "user", "content": "hi"}]),
            tools: None,
            add_generation_prompt: true,
            kwargs: &Map::new(),
            quoting: None,
        });
    assert_eq!(prompt.as_deref(), Ok("<|im_end|>hi"));
}

#[test]
fn a_missing_or_damaged_file_is_named() {
    let error = Copy::new("config").remove("config.json").error();
    assert!(error.contains("has no config.json"), "{error}");
    let error = Copy::new("json").write("config.json", "{").error();
    assert!(error.contains("config.json"), "{error}");
    let error = Copy::new("field")
        .write("config.json", r#"{"model_type": "qwen3"}"#)
        .error();
    assert!(error.contains("vocab_size is missing"), "{error}");
    let error = Copy::new("weights").remove("model.safetensors").error();
    assert!(error.contains("model.safetensors"), "{error}");
    let error = Copy::new("tokenizer").write("tokenizer.json", "{}").error();
    assert!(error.contains("tokenizer.json"), "{error}");
    let error = Copy::new("tc").write("tokenizer_config.json", "[]").error();
    assert!(error.contains("tokenizer_config.json"), "{error}");
    let error = Copy::new("gc")
        .write("generation_config.json", r#"{"top_p": 3}"#)
        .error();
    assert!(error.contains("top_p") && error.contains('3'), "{error}");
}

#[test]
fn a_checkpoint_without_a_tokenizer_opens_and_says_so_when_asked() {
    let checkpoint =
        Checkpoint::open_dir(&goldens().join("qwen3"), LoadFormat::Safetensors).unwrap();
    let error = checkpoint.tokenizer().unwrap_err().to_string();
    assert!(error.contains("has no tokenizer.json"), "{error}");
    assert_eq!(
        checkpoint.chat_template.unwrap_err(),
        ChatTemplateError::Missing
    );
}

#[test]
fn a_model_opens_even_if_its_template_does_not_compile() {
    let copy = Copy::new("template");
    let checkpoint = copy
        .write("chat_template.jinja", "{% if %}")
        .open()
        .unwrap();
    assert!(matches!(
        checkpoint.chat_template,
        Err(ChatTemplateError::Syntax { .. })
    ));
}

#[test]
fn random_weights_need_a_config_only() {
    let copy = Copy::new("dummy");
    copy.remove("model.safetensors").remove("tokenizer.json");
    let checkpoint = Checkpoint::open_dir(&copy.0, LoadFormat::Dummy { seed: 1 }).unwrap();
    for (name, shape) in checkpoint.config.tensors() {
        let view = checkpoint.weights.get(&name, &shape).unwrap();
        assert_eq!(view.format, Format::Float(Dtype::F32), "that of the config");
        assert_eq!(view.len(), shape.iter().product::<usize>());
    }
}

#[test]
fn a_path_that_is_no_directory_is_named() {
    for path in ["/nonexistent/model", "./nowhere", "Cargo.toml"] {
        let error = Checkpoint::open(path, LoadFormat::Safetensors)
            .err()
            .unwrap();
        assert!(
            matches!(error, CheckpointError::NotADirectory { .. }),
            "{error}"
        );
        assert!(error.to_string().contains(path), "{error}");
    }
}

#[cfg(hearth_tiny)]
#[test]
fn the_embedded_model_has_every_tensor_and_can_chat() {
    let checkpoint = Checkpoint::embedded().unwrap();
    assert_eq!(checkpoint.name, EMBEDDED_NAME);
    for (name, shape) in checkpoint.config.tensors() {
        checkpoint.weights.get(&name, &shape).unwrap();
    }
    assert!(checkpoint.tokenizer().unwrap().vocab_size() <= checkpoint.config.vocab_size);
    assert!(checkpoint.chat_template.is_ok());
    assert!(!checkpoint.eos_token_ids().is_empty());
}

#[cfg(not(hearth_tiny))]
#[test]
fn a_binary_without_a_model_says_so() {
    let error = Checkpoint::embedded().err().unwrap().to_string();
    assert!(error.contains("--model"), "{error}");
}

#[cfg(unix)]
#[test]
fn only_regular_files_are_read() {
    for file in [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model.safetensors",
    ] {
        let copy = Copy::new("device");
        let path = copy.0.join(file);
        let _ = fs::remove_file(&path);
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        let error = copy.error();
        assert!(
            error.contains("it is not a regular file"),
            "{file}: {error}"
        );
        // A pipe is not waited for.
        fs::remove_file(&path).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        if made.is_ok_and(|status| status.success()) {
            let error = copy.error();
            assert!(
                error.contains("it is not a regular file"),
                "{file}: {error}"
            );
        }
    }
}

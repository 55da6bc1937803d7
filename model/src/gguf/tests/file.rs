//! GGUF files that are written by hand, with an error in one place.

use crate::gguf::Gguf;

/// A GGUF file.
#[derive(Default)]
pub struct File {
    keys: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    data: usize,
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

impl File {
    pub fn key(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        let mut bytes = text(key);
        bytes.extend(kind.to_le_bytes());
        bytes.extend(value);
        self.keys.push(bytes);
        self
    }

    pub fn text(self, key: &str, value: &str) -> Self {
        self.key(key, 8, &text(value))
    }

    pub fn number(self, key: &str, value: u32) -> Self {
        self.key(key, 4, &value.to_le_bytes())
    }

    /// A list of values of the type `kind`.
    fn list(self, key: &str, kind: u32, values: Vec<Vec<u8>>) -> Self {
        let count = (values.len() as u64).to_le_bytes();
        let bytes = [&kind.to_le_bytes()[..], &count, &values.concat()].concat();
        self.key(key, 9, &bytes)
    }

    pub fn texts(self, key: &str, values: &[&str]) -> Self {
        self.list(key, 8, values.iter().map(|value| text(value)).collect())
    }

    pub fn numbers(self, key: &str, values: &[f32]) -> Self {
        let values = values.iter().map(|value| value.to_le_bytes().to_vec());
        self.list(key, 6, values.collect())
    }

    pub fn float(self, key: &str, value: f32) -> Self {
        self.key(key, 6, &value.to_le_bytes())
    }

    pub fn integers(self, key: &str, values: &[u32]) -> Self {
        let values = values.iter().map(|value| value.to_le_bytes().to_vec());
        self.list(key, 4, values.collect())
    }

    pub fn tensor(mut self, name: &str, shape: &[u64], kind: u32, offset: u64) -> Self {
        let mut bytes = text(name);
        bytes.extend((shape.len() as u32).to_le_bytes());
        shape
            .iter()
            .for_each(|side| bytes.extend(side.to_le_bytes()));
        bytes.extend(kind.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
        self.tensors.push(bytes);
        self
    }

    pub fn data(mut self, bytes: usize) -> Self {
        self.data = bytes;
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3u32.to_le_bytes());
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.keys.len() as u64).to_le_bytes());
        self.keys.iter().for_each(|key| bytes.extend(key));
        self.tensors.iter().for_each(|tensor| bytes.extend(tensor));
        bytes.resize(bytes.len().next_multiple_of(32) + self.data, 0);
        bytes
    }

    pub fn parse_error(&self) -> String {
        parse_error(&self.bytes())
    }

    pub fn config_error(&self) -> String {
        let bytes = self.bytes();
        let file = Gguf::parse(&bytes).unwrap();
        file.config().unwrap_err().to_string()
    }

    pub fn tokenizer_error(&self) -> String {
        let bytes = self.bytes();
        let file = Gguf::parse(&bytes).unwrap();
        file.tokenizer().err().expect("an error").to_string()
    }

    /// A tiny Llama's metadata.
    pub fn llama() -> Self {
        Self::of("llama")
    }

    /// The description of one layer of `architecture`.
    pub fn of(architecture: &str) -> Self {
        let key = |name: &str| format!("{architecture}.{name}");
        File::default()
            .text("general.architecture", architecture)
            .number(&key("embedding_length"), 8)
            .number(&key("feed_forward_length"), 8)
            .number(&key("block_count"), 1)
            .number(&key("attention.head_count"), 2)
            .number(&key("context_length"), 64)
            .float(&key("attention.layer_norm_rms_epsilon"), 1e-5)
            .tensor("token_embd.weight", &[8, 4], 0, 0)
            .data(128)
    }
}

pub fn parse_error(bytes: &[u8]) -> String {
    Gguf::parse(bytes).err().expect("an error").to_string()
}

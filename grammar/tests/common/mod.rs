//! A vocabulary for tests.

use hearth_grammar::VocabularySource;

/// The token that ends an output.
pub const END: u32 = 256;

/// A token for each byte, and [`END`].
pub struct Bytes;

impl VocabularySource for Bytes {
    fn size(&self) -> usize {
        257
    }

    fn bytes(&self, token: u32) -> Vec<u8> {
        u8::try_from(token).map_or(Vec::new(), |byte| vec![byte])
    }

    fn is_special(&self, token: u32) -> bool {
        token == END
    }

    fn encode(&self, text: &str) -> Option<Vec<u32>> {
        Some(text.bytes().map(u32::from).collect())
    }
}

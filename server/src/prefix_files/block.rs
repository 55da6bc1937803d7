//! The format of a file: the keys and values of up to [`BLOCK`] tokens, with all tokens before them.
//!
//! All numbers are little-endian.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `HEARTHKV` |
//! | 4 | version |
//! | 4 | CRC-32 of everything after it |
//! | 8 | identity of model, formats, device and build |
//! | 4 | bytes of a token's keys and values |
//! | 4 | bytes of the namespace |
//! | 4 | tokens |
//! | 4 | tokens whose keys and values are in earlier files |
//! | | namespace, UTF-8 |
//! | | tokens, 4 bytes each |
//! | | keys and values as the executor returns them |

use std::ops::Range;

use hearth_transfer::digest::Digest;

/// Positions of a file: a multiple of this number and those after it. Every page size divides it.
pub const BLOCK: usize = 256;

const MAGIC: &[u8; 8] = b"HEARTHKV";
const VERSION: u32 = 1;
/// Bytes before the namespace.
pub const FIXED: usize = 40;
/// Where the bytes begin that the checksum covers.
const CHECKED: usize = 16;

/// The properties that the keys and values of all files of a start share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    pub identity: u64,
    pub token_bytes: usize,
}

/// The tokens of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub namespace: String,
    /// From the beginning of the prompt.
    pub tokens: Vec<u32>,
    /// The first token whose keys and values are here.
    pub from: usize,
}

/// Why a file is not used.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadFile {
    #[error("it does not begin as a file of cached prefixes does")]
    Magic,
    #[error("its version is {0}, and this program reads {VERSION}")]
    Version(u32),
    #[error("it belongs to another model, number format, device or build")]
    Identity,
    #[error("it has {given} bytes, and its header says {expected}")]
    Length { given: u64, expected: u64 },
    #[error("its header says impossible positions: {from} of {tokens} tokens")]
    Positions { from: usize, tokens: usize },
    #[error("its namespace is no UTF-8")]
    Namespace,
    #[error("its checksum is wrong")]
    Checksum,
    #[error("its name belongs to other tokens")]
    Name,
    #[error("{0}")]
    Io(String),
}

/// Bytes of a file for the positions `from..tokens`.
pub fn file_bytes(kind: Kind, namespace: usize, tokens: usize, from: usize) -> u64 {
    let kv = (tokens - from) as u64 * kind.token_bytes as u64;
    (FIXED + namespace) as u64 + 4 * tokens as u64 + kv
}

/// Everything before the keys and values `kv`.
pub fn head(kind: Kind, namespace: &str, tokens: &[u32], from: usize, kv: &[u8]) -> Vec<u8> {
    let mut head = Vec::with_capacity(FIXED + namespace.len() + 4 * tokens.len());
    head.extend_from_slice(MAGIC);
    head.extend_from_slice(&VERSION.to_le_bytes());
    head.extend_from_slice(&[0; 4]);
    head.extend_from_slice(&kind.identity.to_le_bytes());
    for number in [kind.token_bytes, namespace.len(), tokens.len(), from] {
        head.extend_from_slice(&(number as u32).to_le_bytes());
    }
    head.extend_from_slice(namespace.as_bytes());
    tokens
        .iter()
        .for_each(|token| head.extend_from_slice(&token.to_le_bytes()));
    let checksum = checksum(&[&head[CHECKED..], kv]);
    head[CHECKED - 4..CHECKED].copy_from_slice(&checksum.to_le_bytes());
    head
}

/// Bytes of the head of a file of `given` bytes that begins with `fixed`.
///
/// # Errors
/// The file is no file of `kind`, or has another length than its header says.
pub fn head_bytes(fixed: &[u8], given: u64, kind: Kind) -> Result<usize, BadFile> {
    if fixed.len() < FIXED || &fixed[..8] != MAGIC {
        return Err(BadFile::Magic);
    }
    let version = number(fixed, 8) as u32;
    if version != VERSION {
        return Err(BadFile::Version(version));
    }
    let identity = &fixed[16..24] == kind.identity.to_le_bytes().as_slice();
    if !identity || number(fixed, 24) != kind.token_bytes {
        return Err(BadFile::Identity);
    }
    let [namespace, tokens, from] = [28, 32, 36].map(|at| number(fixed, at));
    if from >= tokens || !from.is_multiple_of(BLOCK) || tokens - from > BLOCK {
        return Err(BadFile::Positions { from, tokens });
    }
    let expected = file_bytes(kind, namespace, tokens, from);
    match given == expected {
        true => Ok(FIXED + namespace + 4 * tokens),
        false => Err(BadFile::Length { given, expected }),
    }
}

/// The tokens of a head of as many bytes as [`head_bytes`] returned.
///
/// # Errors
/// The namespace is no text.
pub fn read_head(head: &[u8]) -> Result<Block, BadFile> {
    let [namespace, from] = [28, 36].map(|at| number(head, at));
    let (namespace, tokens) = head[FIXED..].split_at(namespace);
    let namespace = std::str::from_utf8(namespace).map_err(|_| BadFile::Namespace)?;
    let tokens = tokens.chunks_exact(4);
    Ok(Block {
        namespace: namespace.to_owned(),
        tokens: tokens.map(|token| number(token, 0) as u32).collect(),
        from,
    })
}

/// Checks a whole file; returns its tokens, and where its keys and values are.
///
/// # Errors
/// The file is damaged, or of another kind.
pub fn read(file: &[u8], kind: Kind) -> Result<(Block, Range<usize>), BadFile> {
    let head = head_bytes(file, file.len() as u64, kind)?;
    if checksum(&[&file[CHECKED..]]) as usize != number(file, CHECKED - 4) {
        return Err(BadFile::Checksum);
    }
    Ok((read_head(&file[..head])?, head..file.len()))
}

fn number(bytes: &[u8], at: usize) -> usize {
    let bytes = bytes[at..at + 4].try_into().expect("four bytes");
    u32::from_le_bytes(bytes) as usize
}

fn checksum(parts: &[&[u8]]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize()
}

/// A digest of a growing prefix, which names the file that ends with it.
#[derive(Clone, Copy, Debug)]
pub struct PrefixDigest(Digest);

impl PrefixDigest {
    pub fn new(namespace: &str) -> Self {
        let mut digest = Digest::default();
        digest.update(namespace.as_bytes());
        // No byte of UTF-8.
        digest.update(&[0xff]);
        Self(digest)
    }

    pub fn push(&mut self, token: u32) {
        self.0.update(&token.to_le_bytes());
    }

    pub fn value(self) -> u64 {
        self.0.value()
    }
}

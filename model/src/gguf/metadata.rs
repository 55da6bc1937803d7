//! Keys and values, borrowed from the file. An array is read only when it is used, so that no
//! header makes this process allocate more memory than the header has bytes.

use std::collections::HashMap;

use super::error::GgufError;

/// Far more keys than any model has.
const MAX_KEYS: u64 = 1 << 16;
/// The longest name of a key or a tensor, in bytes. The format has this bound for keys.
pub(super) const MAX_NAME: usize = (1 << 16) - 1;
/// The number of characters of a value that a message shows.
const SHOWN: usize = 80;

/// Reads a file from front to back.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub fn position(&self) -> usize {
        self.at
    }

    /// All bytes of the file.
    pub fn file(&self) -> &'a [u8] {
        self.bytes
    }

    pub fn length(&self) -> usize {
        self.bytes.len()
    }

    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub fn corrupt(&self, reason: impl Into<String>) -> GgufError {
        GgufError::Corrupt {
            at: self.at,
            reason: reason.into(),
        }
    }

    pub fn take(&mut self, count: usize) -> Result<&'a [u8], GgufError> {
        let taken = self
            .bytes
            .get(self.at..)
            .and_then(|rest| rest.get(..count))
            .ok_or_else(|| self.corrupt(format!("{count} bytes go beyond the end of the file")))?;
        self.at += count;
        Ok(taken)
    }

    fn word<const N: usize>(&mut self) -> Result<[u8; N], GgufError> {
        let mut word = [0; N];
        word.copy_from_slice(self.take(N)?);
        Ok(word)
    }

    pub fn u32(&mut self) -> Result<u32, GgufError> {
        self.word().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, GgufError> {
        self.word().map(u64::from_le_bytes)
    }

    pub fn text(&mut self, most: usize) -> Result<&'a str, GgufError> {
        let length = self.u64()?;
        let length = usize::try_from(length)
            .ok()
            .filter(|length| *length <= most)
            .ok_or_else(|| self.corrupt(format!("a string of {length} bytes is too long")))?;
        let bytes = self.take(length)?;
        std::str::from_utf8(bytes).map_err(|_| self.corrupt("a string is not UTF-8"))
    }

    /// Checks the count of items that have at least `bytes` bytes each.
    pub fn count(&self, count: u64, most: u64, bytes: usize) -> Result<usize, GgufError> {
        let fits = (self.left() / bytes) as u64;
        if count > most || count > fits {
            return Err(self.corrupt(format!(
                "a count of {count} is above {}, what is allowed or fits",
                most.min(fits)
            )));
        }
        Ok(count as usize)
    }
}

/// The type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    Array,
    U64,
    I64,
    F64,
}

impl Kind {
    fn read(reader: &mut Reader<'_>) -> Result<Self, GgufError> {
        const KINDS: [Kind; 13] = [
            Kind::U8,
            Kind::I8,
            Kind::U16,
            Kind::I16,
            Kind::U32,
            Kind::I32,
            Kind::F32,
            Kind::Bool,
            Kind::Text,
            Kind::Array,
            Kind::U64,
            Kind::I64,
            Kind::F64,
        ];
        let number = reader.u32()?;
        KINDS
            .get(number as usize)
            .copied()
            .ok_or_else(|| reader.corrupt(format!("there is no type {number} of values")))
    }

    /// The smallest number of bytes of a value.
    fn size(self) -> usize {
        match self {
            Kind::U8 | Kind::I8 | Kind::Bool => 1,
            Kind::U16 | Kind::I16 => 2,
            Kind::U32 | Kind::I32 | Kind::F32 => 4,
            Kind::U64 | Kind::I64 | Kind::F64 | Kind::Text => 8,
            Kind::Array => 12,
        }
    }
}

/// One value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value<'a> {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(&'a str),
    Array(Array<'a>),
}

/// An array whose elements were checked and lie in `bytes`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Array<'a> {
    kind: Kind,
    pub count: usize,
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Self, GgufError> {
        let kind = Kind::read(reader)?;
        if kind == Kind::Array {
            return Err(reader.corrupt("an array of arrays is not supported"));
        }
        let count = reader.u64()?;
        let count = reader.count(count, u64::MAX, kind.size())?;
        let start = reader.at;
        if kind == Kind::Text {
            for _ in 0..count {
                reader.text(usize::MAX)?;
            }
        } else {
            reader.take(count * kind.size())?;
        }
        Ok(Self {
            kind,
            count,
            bytes: &reader.bytes[start..reader.at],
        })
    }

    /// The elements, in order.
    pub fn values(self) -> impl Iterator<Item = Value<'a>> {
        let mut reader = Reader::new(self.bytes);
        (0..self.count).map_while(move |_| Value::read(&mut reader, self.kind).ok())
    }

    /// The elements, if they are strings.
    pub fn texts(self) -> Option<impl Iterator<Item = &'a str>> {
        (self.kind == Kind::Text).then(|| {
            self.values().filter_map(|value| match value {
                Value::Text(text) => Some(text),
                _ => None,
            })
        })
    }
}

impl<'a> Value<'a> {
    fn read(reader: &mut Reader<'a>, kind: Kind) -> Result<Self, GgufError> {
        Ok(match kind {
            Kind::U8 => Value::Unsigned(u8::from_le_bytes(reader.word()?).into()),
            Kind::I8 => Value::Signed(i8::from_le_bytes(reader.word()?).into()),
            Kind::U16 => Value::Unsigned(u16::from_le_bytes(reader.word()?).into()),
            Kind::I16 => Value::Signed(i16::from_le_bytes(reader.word()?).into()),
            Kind::U32 => Value::Unsigned(reader.u32()?.into()),
            Kind::I32 => Value::Signed(i32::from_le_bytes(reader.word()?).into()),
            Kind::F32 => Value::Float(f32::from_le_bytes(reader.word()?).into()),
            Kind::Bool => Value::Bool(reader.take(1)? != [0]),
            Kind::Text => Value::Text(reader.text(usize::MAX)?),
            Kind::Array => Value::Array(Array::read(reader)?),
            Kind::U64 => Value::Unsigned(reader.u64()?),
            Kind::I64 => Value::Signed(i64::from_le_bytes(reader.word()?)),
            Kind::F64 => Value::Float(f64::from_le_bytes(reader.word()?)),
        })
    }

    pub fn integer(self) -> Option<u64> {
        match self {
            Value::Unsigned(number) => Some(number),
            Value::Signed(number) => u64::try_from(number).ok(),
            _ => None,
        }
    }

    pub fn number(self) -> Option<f64> {
        match self {
            Value::Unsigned(number) => Some(number as f64),
            Value::Signed(number) => Some(number as f64),
            Value::Float(number) => Some(number),
            _ => None,
        }
    }

    /// The value as a message shows it.
    fn shown(self) -> String {
        match self {
            Value::Unsigned(number) => number.to_string(),
            Value::Signed(number) => number.to_string(),
            Value::Float(number) => number.to_string(),
            Value::Bool(flag) => flag.to_string(),
            Value::Text(text) => format!("{:?}", text.chars().take(SHOWN).collect::<String>()),
            Value::Array(array) => format!("an array of {}", array.count),
        }
    }
}

/// All keys with their values.
pub(super) struct Metadata<'a> {
    values: HashMap<&'a str, Value<'a>>,
}

impl<'a> Metadata<'a> {
    pub fn read(reader: &mut Reader<'a>, count: u64) -> Result<Self, GgufError> {
        // A key has a length, a type and a value.
        let count = reader.count(count, MAX_KEYS, 8 + 4 + 1)?;
        let mut values = HashMap::new();
        for _ in 0..count {
            let key = reader.text(MAX_NAME)?;
            let kind = Kind::read(reader)?;
            let value = Value::read(reader, kind)?;
            if values.insert(key, value).is_some() {
                let key: String = key.chars().take(SHOWN).collect();
                return Err(reader.corrupt(format!("the key {key} is there twice")));
            }
        }
        Ok(Self { values })
    }

    pub fn get(&self, key: &str) -> Option<Value<'a>> {
        self.values.get(key).copied()
    }

    /// `general.architecture`
    pub fn architecture(&self) -> Result<&'a str, GgufError> {
        self.required("general.architecture", Self::text)
    }

    pub fn invalid(&self, key: &str, bound: impl Into<String>) -> GgufError {
        GgufError::Invalid {
            key: key.to_owned(),
            bound: bound.into(),
            given: self.get(key).map_or("nothing".to_owned(), Value::shown),
        }
    }

    /// The value that `read` finds under `key`.
    pub fn required<T>(
        &self,
        key: &str,
        read: impl FnOnce(&Self, &str) -> Result<Option<T>, GgufError>,
    ) -> Result<T, GgufError> {
        read(self, key)?.ok_or_else(|| GgufError::Missing {
            key: key.to_owned(),
        })
    }

    fn typed<T>(
        &self,
        key: &str,
        bound: &str,
        read: impl FnOnce(Value<'a>) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        self.get(key)
            .map(|value| read(value).ok_or_else(|| self.invalid(key, bound)))
            .transpose()
    }

    pub fn count(&self, key: &str) -> Result<Option<u64>, GgufError> {
        self.typed(key, "one integer from 0", Value::integer)
    }

    pub fn number(&self, key: &str) -> Result<Option<f64>, GgufError> {
        self.typed(key, "one finite number", |value| {
            value.number().filter(|number| number.is_finite())
        })
    }

    pub fn boolean(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.typed(key, "true or false", |value| match value {
            Value::Bool(flag) => Some(flag),
            _ => None,
        })
    }

    pub fn text(&self, key: &str) -> Result<Option<&'a str>, GgufError> {
        self.typed(key, "a string", |value| match value {
            Value::Text(text) => Some(text),
            _ => None,
        })
    }

    pub fn array(&self, key: &str) -> Result<Option<Array<'a>>, GgufError> {
        self.typed(key, "an array", |value| match value {
            Value::Array(array) => Some(array),
            _ => None,
        })
    }

    /// An array of strings.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<&'a str>>, GgufError> {
        let Some(array) = self.array(key)? else {
            return Ok(None);
        };
        let texts = array
            .texts()
            .ok_or_else(|| self.invalid(key, "an array of strings"))?;
        Ok(Some(texts.collect()))
    }

    /// An array of numbers.
    pub fn numbers(&self, key: &str) -> Result<Option<Vec<f32>>, GgufError> {
        let Some(array) = self.array(key)? else {
            return Ok(None);
        };
        let numbers = array.values().map(|value| Some(value.number()? as f32));
        numbers
            .collect::<Option<_>>()
            .map(Some)
            .ok_or_else(|| self.invalid(key, "an array of numbers"))
    }
}

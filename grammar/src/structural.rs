//! Translates structural tags (SGLang, xgrammar) to Lark: free text with marked parts that must
//! follow a schema.
//!
//! Free text ends at the first trigger (a lazy lexeme), and one of the trigger's tags must
//! follow the trigger. The text behind the last tag contains no trigger, so that wherever a tag
//! begins in an output, the output has the whole tag.

mod format;
mod literal;
mod write;

use serde_json::Value;

use self::format::Format;
use crate::error::GrammarError;
use crate::schema::Preparing;

/// The most bytes of a structural tag, as compact JSON.
const MAX_BYTES: usize = 256 * 1024;

/// The Lark grammar of the structural tag `given`.
///
/// # Errors
/// If `given` is not a structural tag, exceeds a bound, or asks for something that is not
/// supported. The error has the JSON pointer of the place.
pub(crate) fn to_lark(given: &Value, preparing: &mut Preparing) -> Result<String, GrammarError> {
    let bytes = given.to_string().len();
    if bytes > MAX_BYTES {
        return Err(GrammarError::too_complex(format!(
            "a structural tag must be at most {MAX_BYTES} bytes long, got {bytes}"
        )));
    }
    write::lark(&Format::root(given)?, preparing)
}

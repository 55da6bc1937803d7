//! SGLang's `rid`: the name of a request, by which `/abort_request` finds it.

use std::collections::BTreeSet;

use uuid::Uuid;

use crate::error::{ApiError, out_of_bounds};
use crate::fields::each::Each;

/// Most bytes of a `rid`, which is in every line of the log.
const MAX_RID_BYTES: usize = 128;

/// The name of each prompt: the request's own, or a new one where it has none.
///
/// # Errors
/// The errors of [`given_rids`].
pub fn rids(given: Option<Each<String>>, prompts: usize) -> Result<Vec<String>, ApiError> {
    let fresh = || Uuid::now_v7().simple().to_string();
    let given = given_rids(given, prompts)?;
    Ok(given.unwrap_or_else(|| (0..prompts).map(|_| fresh()).collect()))
}

/// The name that the request gives each prompt, if it does.
///
/// # Errors
/// 400 for a name that is empty, too long, not printable, or given twice.
pub fn given_rids(
    given: Option<Each<String>>,
    prompts: usize,
) -> Result<Option<Vec<String>>, ApiError> {
    let rids = match given {
        None => return Ok(None),
        // SGLang names the requests of a batch with one id like this.
        Some(Each::All(rid)) if prompts > 1 => {
            (0..prompts).map(|index| format!("{rid}_{index}")).collect()
        }
        Some(rids) => rids.spread("rid", prompts)?,
    };
    let mut seen = BTreeSet::new();
    for rid in &rids {
        let printable = rid.bytes().all(|byte| byte.is_ascii_graphic());
        if rid.is_empty() || rid.len() > MAX_RID_BYTES || !printable {
            let bound = format!("between 1 and {MAX_RID_BYTES} printable ASCII characters");
            return Err(out_of_bounds("rid", &bound, shown(rid)));
        }
        if !seen.insert(rid) {
            let bound = "a list of names that differ";
            return Err(out_of_bounds("rid", bound, format!("{} twice", shown(rid))));
        }
    }
    Ok(Some(rids))
}

/// The beginning of a name, which may be long.
fn shown(rid: &str) -> String {
    let begin: String = rid.chars().take(MAX_RID_BYTES).collect();
    match begin.len() == rid.len() {
        true => format!("{rid:?}"),
        false => format!("{begin:?}... of {} bytes", rid.len()),
    }
}

//! Errors of programs.

/// Why a statement of a program failed. It is cheap to clone: every variable that depends on the
/// statement has the same error.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// The back end lacks a feature that the program uses.
    #[error("the back end `{backend}` does not support {feature}")]
    Unsupported {
        backend: String,
        feature: &'static str,
    },
    /// The back end refused the request. `status` is the status of HTTP, also where the back end
    /// does not speak HTTP.
    #[error("{status}: {message}")]
    Refused { status: u16, message: String },
    /// The connection failed or broke, or the server sent something unexpected.
    #[error("{0}")]
    Transport(String),
    /// The program reads a variable that no earlier statement defines.
    #[error("the variable {0:?} is not defined by any earlier statement")]
    Undefined(String),
    /// The statement was not run to its end, because its state was dropped.
    #[error("the state was dropped before the statement ended")]
    Cancelled,
    /// The program is only traced, so its variables have no values.
    #[error("the value of {0:?} is not known while the program is traced")]
    Traced(String),
    /// A variable is read as a type that it does not have.
    #[error("the variable {name:?} is not {wanted}: {reason}")]
    WrongType {
        name: String,
        wanted: &'static str,
        reason: String,
    },
    /// The statements of the program do not fit together.
    #[error("{0}")]
    Misuse(String),
    /// A chat API, which cannot continue a message, did not write the message in the form of the
    /// program.
    #[error("the answer did not follow the form of the program in {attempts} calls")]
    FormNotFollowed { attempts: usize },
}

impl Error {
    /// True if the same request may succeed later: the server is full (429 or 503).
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Refused {
                status: 429 | 503,
                ..
            }
        )
    }
}

//! Reading variables and texts, which is the only thing that waits.

use serde::de::DeserializeOwned;
use serde::de::IntoDeserializer;
use serde::de::value::StrDeserializer;
use tokio::sync::watch;

use crate::lang::cell::{Cell, Meta, Outcome, Value};
use crate::lang::error::Error;

/// A variable of a program: a handle to a value that may not be computed yet. Cheap to clone, and
/// it outlives its state once the value is there.
#[derive(Clone, Debug)]
pub struct Var {
    name: String,
    state: usize,
    source: Source,
}

#[derive(Clone, Debug)]
pub enum Source {
    Cell(Cell),
    /// No earlier statement defines it.
    Undefined,
    /// Defined in a program that is only traced.
    Traced,
}

impl Var {
    pub(crate) fn new(name: &str, state: usize, source: Source) -> Self {
        Self {
            name: name.to_owned(),
            state,
            source,
        }
    }

    /// A variable that no statement defines.
    pub(crate) fn undefined(name: &str) -> Self {
        Self::new(name, 0, Source::Undefined)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of the state that it was taken from.
    pub(crate) fn state(&self) -> usize {
        self.state
    }

    /// The cell, or why there is none.
    pub(crate) fn cell(&self) -> Result<&Cell, Error> {
        match &self.source {
            Source::Cell(cell) => Ok(cell),
            Source::Undefined => Err(Error::Undefined(self.name.clone())),
            Source::Traced => Err(Error::Traced(self.name.clone())),
        }
    }

    /// Waits for the value and the facts about it.
    ///
    /// # Errors
    /// The error of the statement that computes the variable.
    pub async fn outcome(&self) -> Result<Outcome, Error> {
        self.cell()?.outcome().await
    }

    /// Waits for the text.
    ///
    /// # Errors
    /// The statement failed, or the variable is a list.
    pub async fn text(&self) -> Result<String, Error> {
        match self.outcome().await?.value {
            Value::Text(text) => Ok(text),
            Value::List(_) => Err(self.wrong("a text", "it is the list of the forks' values")),
        }
    }

    /// Waits for the values that the forks gave the variable, in their order. A fork that failed
    /// has its error there.
    ///
    /// # Errors
    /// The join failed, or the variable is not a list of texts.
    pub async fn texts(&self) -> Result<Vec<Result<String, Error>>, Error> {
        let Value::List(values) = self.outcome().await?.value else {
            return Err(self.wrong("a list", "it is a text"));
        };
        let text = |value| match value {
            Ok(Value::Text(text)) => Ok(Ok(text)),
            Ok(Value::List(_)) => Err(self.wrong("a list of texts", "it is a list of lists")),
            Err(error) => Ok(Err(error)),
        };
        values.into_iter().map(text).collect()
    }

    /// Waits for the value as a `T`: from JSON where the text is JSON of a `T`, else from the text
    /// itself.
    ///
    /// # Errors
    /// The statement failed, or the text is no `T`.
    pub async fn get<T: DeserializeOwned>(&self) -> Result<T, Error> {
        let text = self.text().await?;
        typed(&text).map_err(|reason| self.wrong("of the wanted type", &reason))
    }

    /// Waits until the value is computed, and gives the facts about it.
    ///
    /// # Errors
    /// The error of the statement that computes the variable.
    pub async fn meta(&self) -> Result<Meta, Error> {
        Ok(self.outcome().await?.meta)
    }

    /// The text piece by piece, while it is generated.
    pub fn stream(&self) -> VarStream {
        VarStream {
            cell: Some(self.cell().cloned()),
            seen: 0,
        }
    }

    fn wrong(&self, wanted: &'static str, reason: &str) -> Error {
        Error::WrongType {
            name: self.name.clone(),
            wanted,
            reason: reason.to_owned(),
        }
    }
}

fn typed<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let json = serde_json::from_str(text.trim());
    json.or_else(|error: serde_json::Error| {
        let plain: StrDeserializer<'_, serde::de::value::Error> = text.into_deserializer();
        T::deserialize(plain).map_err(|_| format!("{error}, got {text:?}"))
    })
}

/// The text of a variable while it is generated; see [`Var::stream`].
#[derive(Debug)]
pub struct VarStream {
    /// None after the end.
    cell: Option<Result<Cell, Error>>,
    seen: usize,
}

impl VarStream {
    /// The next piece of text; `None` at its end.
    ///
    /// # Errors
    /// The error of the statement that computes the variable; nothing follows it.
    pub async fn next(&mut self) -> Option<Result<String, Error>> {
        let next = match self.cell.as_mut()? {
            Ok(cell) => cell.text_after(self.seen).await,
            Err(error) => Err(error.clone()),
        };
        let next = next.transpose();
        match &next {
            Some(Ok(text)) => self.seen += text.len(),
            _ => self.cell = None,
        }
        next
    }
}

/// How far a state has come.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// The text so far, with the part of a generation that is already there.
    pub text: String,
    /// The statements that have ended.
    pub done: usize,
    pub error: Option<Error>,
}

/// The text of a state, piece by piece, up to the last statement that was submitted when the stream
/// was made.
#[derive(Debug)]
pub struct TextStream {
    /// None after the end.
    progress: Option<Result<watch::Receiver<Progress>, Error>>,
    until: usize,
    seen: usize,
}

impl TextStream {
    pub(crate) fn new(progress: Result<watch::Receiver<Progress>, Error>, until: usize) -> Self {
        Self {
            progress: Some(progress),
            until,
            seen: 0,
        }
    }

    /// The next piece of text; `None` at its end.
    ///
    /// # Errors
    /// The error of the first statement that failed; nothing follows it.
    pub async fn next(&mut self) -> Option<Result<String, Error>> {
        let (seen, until) = (self.seen, self.until);
        let next = match self.progress.as_mut()? {
            Ok(progress) => text_after(progress, seen, until).await,
            Err(error) => Err(error.clone()),
        };
        let next = next.transpose();
        match &next {
            Some(Ok(text)) => self.seen += text.len(),
            _ => self.progress = None,
        }
        next
    }
}

async fn text_after(
    progress: &mut watch::Receiver<Progress>,
    seen: usize,
    until: usize,
) -> Result<Option<String>, Error> {
    let news = |progress: &Progress| {
        progress.text.len() > seen || progress.done >= until || progress.error.is_some()
    };
    let now = progress.wait_for(news).await;
    let now = now.map_err(|_| Error::Cancelled)?;
    let rest = now.text.get(seen..).unwrap_or_default();
    match (&now.error, rest) {
        (Some(error), "") => Err(error.clone()),
        (None, "") => Ok(None),
        (_, rest) => Ok(Some(rest.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_read_as_json_or_as_it_is() {
        assert_eq!(typed::<i64>(" 42\n"), Ok(42));
        assert_eq!(typed::<String>("\"a b\""), Ok("a b".to_owned()));
        assert_eq!(typed::<String>("a b"), Ok("a b".to_owned()));
        assert_eq!(typed::<String>("12"), Ok("12".to_owned()));
        assert_eq!(typed::<Vec<u8>>("[1, 2]"), Ok(vec![1, 2]));
        #[derive(Debug, PartialEq, serde::Deserialize)]
        enum Colour {
            Red,
        }
        assert_eq!(typed::<Colour>("Red"), Ok(Colour::Red));
        assert!(typed::<i64>("many").unwrap_err().contains("\"many\""));
    }
}

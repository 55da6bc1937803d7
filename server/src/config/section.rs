//! The sections of a configuration file: the keys of `serve` at its top, and a table for each other
//! command that has settings.

use figment::value::{Dict, Map, Value};
use figment::{Error, Metadata, Profile, Provider};

/// The table of the router.
pub const ROUTER: &str = "router";

/// A file without the tables of other commands.
pub struct TopLevel<P>(pub P);

/// The table `.1` of a file, or nothing if the file has none.
pub struct Table<P>(pub P, pub &'static str);

impl<P: Provider> Provider for TopLevel<P> {
    fn metadata(&self) -> Metadata {
        self.0.metadata()
    }

    fn data(&self) -> Result<Map<Profile, Dict>, Error> {
        let mut data = self.0.data()?;
        for keys in data.values_mut() {
            keys.remove(ROUTER);
        }
        Ok(data)
    }
}

impl<P: Provider> Provider for Table<P> {
    fn metadata(&self) -> Metadata {
        self.0.metadata()
    }

    fn data(&self) -> Result<Map<Profile, Dict>, Error> {
        let mut data = self.0.data()?;
        for keys in data.values_mut() {
            *keys = match keys.remove(self.1) {
                None => Dict::new(),
                Some(Value::Dict(_, table)) => table,
                Some(_) => return Err(Error::from(format!("`{}` must be a table", self.1))),
            };
        }
        Ok(data)
    }
}

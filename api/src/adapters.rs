//! The adapters (LoRA) that requests may select: their names, their files and who uses them.
//!
//! An adapter is registered under a name. Its numbers are in the host's memory as long as there is
//! room for them (`--max-cpu-loras`) and are read again when it is needed later. A request holds what
//! it computes with, so that unloading or replacing an adapter changes no request that was accepted.

mod choice;
mod lora_dir;
mod use_count;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hearth_engine::Adapter;

pub use choice::{Choice, MAX_SCALED, NO_MODEL, Scaled, Wanted};
pub use lora_dir::LoraDir;
use use_count::Uses;
pub use use_count::{AdapterLabels, AdapterUse, InUse};

/// The most adapters that can be registered, and the longest name.
const MAX_ADAPTERS: usize = 1024;
const MAX_NAME: usize = 256;

/// Why an adapter cannot be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdapterError {
    /// There is nothing at this path.
    NotFound(String),
    /// The contents cannot be applied.
    Refused(String),
    /// Its name is taken, or is no name.
    Name(String),
}

impl fmt::Display for AdapterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::NotFound(text) | Self::Refused(text) | Self::Name(text)) = self;
        f.write_str(text)
    }
}

impl std::error::Error for AdapterError {}

/// Reads adapters for the served model. It is a trait, so that this crate does not depend on the
/// model's.
pub trait AdapterSource: Send + Sync {
    /// # Errors
    /// There is no such adapter, or it cannot be applied to the model.
    fn read(&self, path: &str) -> Result<Adapter, AdapterError>;

    /// The sum of adapters, each times a factor; none of the factors is 0.
    ///
    /// # Errors
    /// The sum needs more than the server has room for.
    fn combined(&self, parts: &[(Arc<Adapter>, f32)]) -> Result<Adapter, AdapterError>;
}

/// How an adapter is registered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Registration {
    pub name: String,
    pub path: String,
    /// It stays in the host's memory.
    pub pinned: bool,
    /// Its factor in requests that select nothing (llama-server's `--lora`).
    pub scale: f32,
}

/// A registered adapter, for lists.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    pub id: usize,
    pub name: String,
    pub path: String,
    pub scale: f32,
}

/// Why the factors of adapters in requests that select nothing stay as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleError {
    /// No adapter has this id.
    Unknown(usize),
    /// The adapter has whole tables, so that it applies alone and with the factor 1.
    NotAlone(usize),
}

struct Registered {
    id: usize,
    as_given: Registration,
    /// Changes when another adapter takes its place.
    version: u64,
    /// `None` while it is not in the host's memory.
    adapter: Option<Arc<Adapter>>,
    /// True if it brings whole tables, and so applies alone and with the factor 1.
    has_tables: bool,
    /// Held while its file is read again, which may take gigabytes of memory.
    reading: Arc<Mutex<()>>,
    used: u64,
    uses: Arc<Uses>,
}

#[derive(Default)]
struct State {
    list: Vec<Registered>,
    next_id: usize,
    clock: u64,
    /// Sums of adapters that were asked for, with what they were made of; the latest last.
    sums: Vec<(String, Arc<Adapter>)>,
}

/// The numbers of an adapter, and its uses.
type Numbers = (Arc<Adapter>, Arc<Uses>);

/// The adapters of a served model.
#[derive(Default)]
pub struct Adapters {
    /// `None` for a server that takes no adapters.
    source: Option<Arc<dyn AdapterSource>>,
    /// Slots on the device.
    slots: usize,
    /// Adapters that may be in the host's memory beside pinned ones and those in use.
    most_in_memory: usize,
    /// Where requests may name paths.
    dir: Option<LoraDir>,
    state: Mutex<State>,
}

impl fmt::Debug for Adapters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adapters")
            .field("slots", &self.slots)
            .finish_non_exhaustive()
    }
}

impl Adapters {
    /// For a server with `slots` for adapters on its device.
    pub fn new(
        source: Arc<dyn AdapterSource>,
        slots: usize,
        most_in_memory: usize,
        dir: Option<LoraDir>,
    ) -> Self {
        Self {
            source: Some(source),
            slots,
            most_in_memory,
            dir,
            state: Mutex::default(),
        }
    }

    /// True if the server takes adapters at all.
    pub fn is_on(&self) -> bool {
        self.source.is_some()
    }

    /// Slots on the device.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// The path of an adapter that a request names.
    ///
    /// # Errors
    /// The server takes no paths of requests, or it is not one below its directory.
    pub fn path_of_a_request(&self, given: &str) -> Result<String, AdapterError> {
        match &self.dir {
            Some(dir) => dir.resolve(given),
            None => Err(AdapterError::Refused(
                "adapters cannot be loaded while the server runs; start it with --lora-dir"
                    .to_owned(),
            )),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads an adapter and registers it. With `replace` it may take the place of one with the same
    /// name; requests that were accepted before go on with that.
    ///
    /// # Errors
    /// The name is taken or no name, or the adapter cannot be read.
    pub fn register(
        &self,
        given: Registration,
        base: &str,
        replace: bool,
    ) -> Result<(), AdapterError> {
        check_name(&given.name, base)?;
        let taken = || {
            AdapterError::Name(format!(
                "The lora adapter '{}' has already been loaded. If you want to load the adapter in \
                 place, set 'load_inplace' to True.",
                given.name
            ))
        };
        if !replace && self.state().find(&given.name).is_some() {
            return Err(taken());
        }
        let adapter = Arc::new(self.read(&given.path)?);
        let mut state = self.state();
        state.clock += 1;
        let used = state.clock;
        match state.find(&given.name) {
            Some(_) if !replace => return Err(taken()),
            Some(index) => {
                let there = &mut state.list[index];
                there.has_tables = adapter.has_tables();
                (there.as_given, there.version, there.used) = (given, used, used);
                there.adapter = Some(adapter);
            }
            None if state.list.len() >= MAX_ADAPTERS => {
                let message = format!("at most {MAX_ADAPTERS} adapters can be loaded");
                return Err(AdapterError::Refused(message));
            }
            None => {
                let id = state.next_id;
                state.next_id += 1;
                state.list.push(Registered {
                    id,
                    as_given: given,
                    version: used,
                    has_tables: adapter.has_tables(),
                    reading: Arc::default(),
                    adapter: Some(adapter),
                    used,
                    uses: Arc::default(),
                });
            }
        }
        state.forget_unused(self.most_in_memory);
        Ok(())
    }

    fn read(&self, path: &str) -> Result<Adapter, AdapterError> {
        match &self.source {
            Some(source) => source.read(path),
            None => Err(AdapterError::Refused(
                "this server takes no adapters; start it with --enable-lora".to_owned(),
            )),
        }
    }

    /// Removes an adapter. Requests that were accepted go on with it; the result tells when none does
    /// any more. `None` if there is no such adapter.
    pub fn unregister(&self, name: &str) -> Option<InUse> {
        let mut state = self.state();
        let index = state.find(name)?;
        let removed = state.list.remove(index);
        Some(InUse::of(removed.uses))
    }

    /// All registered adapters, in the order of their ids.
    pub fn list(&self) -> Vec<Listed> {
        let state = self.state();
        let list = state.list.iter().map(|there| Listed {
            id: there.id,
            name: there.as_given.name.clone(),
            path: there.as_given.path.clone(),
            scale: there.as_given.scale,
        });
        list.collect()
    }

    /// Sets the factors of adapters in requests that select nothing; those that are not named get 0.
    ///
    /// # Errors
    /// The first id that no adapter has, or an adapter that does not apply in this way.
    pub fn set_scales(&self, scales: &[(usize, f32)]) -> Result<(), ScaleError> {
        let mut state = self.state();
        let unknown = |id: &usize| state.list.iter().all(|there| there.id != *id);
        if let Some((id, _)) = scales.iter().find(|(id, _)| unknown(id)) {
            return Err(ScaleError::Unknown(*id));
        }
        let applied: Vec<_> = scales.iter().filter(|(_, scale)| *scale != 0.0).collect();
        if !matches!(applied[..], [] | [(_, 1.0)]) {
            let has_tables = |there: &&Registered| {
                there.has_tables && applied.iter().any(|(id, _)| *id == there.id)
            };
            if let Some(there) = state.list.iter().find(has_tables) {
                return Err(ScaleError::NotAlone(there.id));
            }
        }
        for there in &mut state.list {
            let scale = scales.iter().find(|(id, _)| *id == there.id);
            there.as_given.scale = scale.map_or(0.0, |(_, scale)| *scale);
        }
        Ok(())
    }

    /// The names of the adapters that running requests use, and of those that waiting requests wait
    /// for.
    pub fn in_use(&self) -> [Vec<String>; 2] {
        let state = self.state();
        let names = |used: fn(&Uses) -> bool| {
            let list = state.list.iter().filter(|there| used(&there.uses));
            list.map(|there| there.as_given.name.clone()).collect()
        };
        [names(Uses::has_running), names(Uses::has_waiting)]
    }

    /// True if a request may have to read the file of its adapter first.
    pub fn may_read(&self) -> bool {
        self.state()
            .list
            .iter()
            .any(|there| there.adapter.is_none())
    }

    /// The numbers of a registered adapter, read again if they are not in memory: once, whatever the
    /// number of requests that ask for it.
    fn numbers(&self, id: usize) -> Result<Option<Numbers>, AdapterError> {
        let reading = {
            let state = self.state();
            let there = state.list.iter().find(|there| there.id == id);
            let there = there.filter(|there| there.adapter.is_none());
            there.map(|there| Arc::clone(&there.reading))
        };
        // Another request may read it meanwhile.
        let lock = reading.as_ref().map(|reading| reading.lock());
        let _lock = lock.map(|lock| lock.unwrap_or_else(PoisonError::into_inner));
        loop {
            let (path, version) = {
                let mut state = self.state();
                state.clock += 1;
                let clock = state.clock;
                let Some(there) = state.list.iter_mut().find(|there| there.id == id) else {
                    return Ok(None);
                };
                there.used = clock;
                if let Some(adapter) = &there.adapter {
                    return Ok(Some((Arc::clone(adapter), Arc::clone(&there.uses))));
                }
                (there.as_given.path.clone(), there.version)
            };
            let adapter = Arc::new(self.read(&path)?);
            let mut state = self.state();
            let Some(there) = state.list.iter_mut().find(|there| there.id == id) else {
                return Ok(None);
            };
            if there.version != version {
                // Another adapter has taken its place meanwhile.
                continue;
            }
            let adapter = Arc::clone(there.adapter.get_or_insert(adapter));
            let uses = Arc::clone(&there.uses);
            state.forget_unused(self.most_in_memory);
            return Ok(Some((adapter, uses)));
        }
    }

    /// The sum of `parts`, which is made once for requests with the same parts.
    fn sum(&self, parts: &[(Arc<Adapter>, f32)]) -> Result<Arc<Adapter>, AdapterError> {
        let Some(source) = &self.source else {
            return Err(AdapterError::Refused("there are no adapters".to_owned()));
        };
        let key = parts
            .iter()
            .map(|(adapter, scale)| format!("{}:{:08x} ", adapter.digest, scale.to_bits()));
        let key: String = key.collect();
        {
            let mut state = self.state();
            if let Some(index) = state.sums.iter().position(|(there, _)| *there == key) {
                let there = state.sums.remove(index);
                let sum = Arc::clone(&there.1);
                state.sums.push(there);
                return Ok(sum);
            }
        }
        let sum = Arc::new(source.combined(parts)?);
        let mut state = self.state();
        state.sums.push((key, Arc::clone(&sum)));
        let beyond = state.sums.len().saturating_sub(self.most_in_memory.max(1));
        state.sums.drain(..beyond);
        Ok(sum)
    }
}

impl State {
    fn find(&self, name: &str) -> Option<usize> {
        let mut list = self.list.iter();
        list.position(|there| there.as_given.name == name)
    }

    /// Forgets the numbers that were used longest ago, beyond `most`. Requests that compute with
    /// them keep them.
    fn forget_unused(&mut self, most: usize) {
        let in_memory = self.list.iter_mut();
        let mut in_memory: Vec<_> = in_memory
            .filter(|there| there.adapter.is_some() && !there.as_given.pinned)
            .collect();
        in_memory.sort_by_key(|there| there.used);
        let beyond = in_memory.len().saturating_sub(most);
        for there in in_memory.into_iter().take(beyond) {
            there.adapter = None;
        }
    }
}

fn check_name(name: &str, base: &str) -> Result<(), AdapterError> {
    let reason = if name.is_empty() || name.len() > MAX_NAME {
        format!("a name has 1 to {MAX_NAME} bytes, got {}", name.len())
    } else if name == base {
        format!("the name {name:?} is the name of the base model")
    } else if name.chars().any(|c| c.is_control() || c == ',') {
        "a name has no commas and no control characters".to_owned()
    } else {
        return Ok(());
    };
    Err(AdapterError::Name(reason))
}

#[cfg(test)]
mod tests;

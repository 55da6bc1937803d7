//! The workers, which may come and go while requests run.

use std::sync::{Arc, PoisonError, RwLock};

use crate::worker::{Role, Worker};

/// A list of workers at one moment.
pub type Snapshot = Arc<[Arc<Worker>]>;

#[derive(Debug)]
pub struct Registry(RwLock<Snapshot>);

impl Default for Registry {
    fn default() -> Self {
        Self(RwLock::new(Arc::from(Vec::new())))
    }
}

impl Registry {
    /// The workers now. The lock is held for the copy of one pointer.
    pub fn all(&self) -> Snapshot {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Workers of the kind of `role`.
    pub fn of(&self, role: Role) -> Vec<Arc<Worker>> {
        let all = self.all();
        let kind = all.iter().filter(|worker| worker.role.is_kind_of(role));
        kind.cloned().collect()
    }

    pub fn get(&self, id: &str) -> Option<Arc<Worker>> {
        self.all().iter().find(|worker| worker.id == id).cloned()
    }

    /// Adds a worker, unless one that is not draining has its URL and role: then that one is
    /// returned.
    pub fn add(&self, worker: Arc<Worker>) -> Result<(), Arc<Worker>> {
        let mut workers = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let same = |own: &&Arc<Worker>| {
            own.url == worker.url && own.role.is_kind_of(worker.role) && !own.is_draining()
        };
        if let Some(own) = workers.iter().find(same) {
            return Err(Arc::clone(own));
        }
        *workers = workers.iter().cloned().chain([worker]).collect();
        Ok(())
    }

    /// Forgets a worker. Requests that run at it are not disturbed.
    pub fn remove(&self, id: &str) {
        let mut workers = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let others = workers.iter().filter(|worker| worker.id != id);
        *workers = others.cloned().collect();
    }
}

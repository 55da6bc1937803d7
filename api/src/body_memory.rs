//! The memory that all large bodies take together while they arrive and are parsed.
//!
//! A body takes its share as its bytes arrive, and not when its length is announced: a length costs
//! a client nothing. So many bodies may begin, and wait for one another in the middle. That they do
//! not wait for ever, one of them may go on without a share, and so may one of each address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// A body of this size never waits: its connection takes as much.
const SMALL_BYTES: usize = 64 * 1024;
/// Memory in KiB of all larger bodies.
const ALL_KIB: usize = 256 * 1024;
/// Memory in KiB of those from one address, so that no client can take all of it.
const ADDRESS_KIB: usize = ALL_KIB / 2;

static MEMORY: LazyLock<Memory> = LazyLock::new(|| Memory::new(ALL_KIB, ADDRESS_KIB));

struct Memory {
    most: usize,
    most_of_address: usize,
    taken: Mutex<Taken>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct Taken {
    all: Account,
    by_address: HashMap<IpAddr, Account>,
}

/// The part of a bound that bodies have taken.
#[derive(Debug, Default)]
struct Account {
    kib: usize,
    /// True if one of them goes on beyond the bound.
    exceeded: bool,
}

/// The memory of one body.
#[derive(Debug)]
pub struct Share {
    memory: &'static Memory,
    address: Option<IpAddr>,
    kib: usize,
    exceeds: bool,
    exceeds_address: bool,
    /// True if it has asked for memory, and so may be in the table of addresses.
    asked: bool,
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Memory")
    }
}

impl Memory {
    fn new(most: usize, most_of_address: usize) -> Self {
        Self {
            most,
            most_of_address,
            taken: Mutex::default(),
            freed: Notify::new(),
        }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Share {
    /// Nothing yet, for a body from `address`.
    pub fn new(address: Option<IpAddr>) -> Self {
        Self::of(&MEMORY, address)
    }

    fn of(memory: &'static Memory, address: Option<IpAddr>) -> Self {
        Self {
            memory,
            address,
            kib: 0,
            exceeds: false,
            exceeds_address: false,
            asked: false,
        }
    }

    /// Waits until the share may be as large as a body of `bytes`.
    pub async fn cover(&mut self, bytes: usize) {
        let kib = match bytes {
            ..=SMALL_BYTES => 0,
            _ => bytes.div_ceil(1024),
        };
        if kib <= self.kib {
            return;
        }
        loop {
            let freed = self.memory.freed.notified();
            tokio::pin!(freed);
            // From here on it notices what is freed.
            freed.as_mut().enable();
            if self.grow(kib) {
                return;
            }
            freed.await;
        }
    }

    /// Makes the share `kib` large, if that is possible now.
    fn grow(&mut self, kib: usize) -> bool {
        self.asked = true;
        let mut taken = self.memory.taken();
        let more = kib - self.kib;
        let fits = |account: &Account, most: usize| account.kib + more <= most;
        let of_address = self
            .address
            .map(|address| taken.by_address.entry(address).or_default());
        let address_fits = match of_address {
            None => true,
            Some(account) => {
                let fits = fits(account, self.memory.most_of_address);
                if !fits && !self.exceeds_address && !account.exceeded {
                    account.exceeded = true;
                    self.exceeds_address = true;
                }
                fits || self.exceeds_address
            }
        };
        if !address_fits {
            return false;
        }
        if !fits(&taken.all, self.memory.most) && !self.exceeds {
            if taken.all.exceeded {
                return false;
            }
            taken.all.exceeded = true;
            self.exceeds = true;
        }
        taken.all.kib += more;
        if let Some(account) = self.address.and_then(|a| taken.by_address.get_mut(&a)) {
            account.kib += more;
        }
        self.kib = kib;
        true
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if !self.asked {
            return;
        }
        let mut taken = self.memory.taken();
        taken.all.kib -= self.kib;
        taken.all.exceeded &= !self.exceeds;
        if let Some(address) = self.address
            && let Some(account) = taken.by_address.get_mut(&address)
        {
            account.kib -= self.kib;
            account.exceeded &= !self.exceeds_address;
            if account.kib == 0 && !account.exceeded {
                taken.by_address.remove(&address);
            }
        }
        drop(taken);
        self.memory.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MIB: usize = 1024 * 1024;

    fn memory(most_mib: usize, of_address_mib: usize) -> &'static Memory {
        Box::leak(Box::new(Memory::new(
            most_mib * 1024,
            of_address_mib * 1024,
        )))
    }

    fn address(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, last]))
    }

    async fn waits(share: &mut Share, bytes: usize) -> bool {
        let soon = Duration::from_millis(20);
        tokio::time::timeout(soon, share.cover(bytes))
            .await
            .is_err()
    }

    #[tokio::test]
    async fn small_bodies_and_announced_ones_take_nothing() {
        let memory = memory(1, 1);
        let mut all = Share::of(memory, address(1));
        all.cover(MIB).await;
        let mut more = Share::of(memory, address(1));
        more.cover(2 * MIB).await;
        let mut small = Share::of(memory, address(1));
        assert!(!waits(&mut small, SMALL_BYTES).await);
        assert!(waits(&mut small, SMALL_BYTES + 1).await);
        drop(all);
        drop(more);
        assert!(!waits(&mut small, SMALL_BYTES + 1).await);
        drop(small);
        assert_eq!(memory.taken().all.kib, 0);
        assert!(memory.taken().by_address.is_empty());
    }

    #[tokio::test]
    async fn one_address_leaves_memory_for_others() {
        let memory = memory(8, 4);
        let mut many: Vec<_> = (0..8).map(|_| Share::of(memory, address(1))).collect();
        for (index, share) in many.iter_mut().enumerate() {
            // The fifth exceeds the bound of the address, and the sixth waits.
            assert_eq!(waits(share, MIB).await, index > 4, "{index}");
        }
        let mut other = Share::of(memory, address(2));
        assert!(!waits(&mut other, 3 * MIB).await);
    }

    #[tokio::test]
    async fn bodies_that_wait_for_one_another_end_all_the_same() {
        let memory = memory(4, 4);
        let upload = async |last: u8| {
            let mut share = Share::of(memory, address(last));
            for mib in 1..=4 {
                share.cover(mib * MIB).await;
                tokio::task::yield_now().await;
            }
        };
        let all = futures_util::future::join_all((0..32).map(|n| upload(n % 3)));
        tokio::time::timeout(Duration::from_secs(10), all)
            .await
            .unwrap();
        assert_eq!(memory.taken().all.kib, 0);
        assert!(!memory.taken().all.exceeded);
    }
}

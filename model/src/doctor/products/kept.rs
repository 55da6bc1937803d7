//! What was chosen on a device, in a file.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use hearth_shaders::tune::Products;
use hearth_shaders::{ProductChoice, ProductKernel};
use serde_json::{Map, Value, json};

use crate::device::DeviceReport;

/// A kernel at which so many starts ended one after another is not tried any more: one may have
/// been stopped by somebody.
const TOO_OFTEN: u64 = 2;

/// Longer than a start chooses on any device that is worth waiting for.
const LONGEST_WAIT: Duration = Duration::from_secs(180);
const RETRY: Duration = Duration::from_millis(50);

/// The file, which no other start reads or writes as long as this is there: nobody else times
/// kernels on the device meanwhile.
pub(super) struct Kept {
    path: PathBuf,
    /// The device: another's file may have the same name.
    device: String,
    /// What it is asked for.
    products: String,
    /// What was chosen for what.
    choices: BTreeMap<String, ProductChoice>,
    trying: Option<ProductKernel>,
    /// Kernels at which starts ended, and how many: they may have taken the device with them, or
    /// the process.
    ended: Vec<(ProductKernel, u64)>,
    _lock: File,
}

impl Kept {
    /// Waits for a start that is at it. A file that is not there, that is broken or another
    /// device's is as an empty one.
    ///
    /// # Errors
    /// Nothing can be kept there, or another start is at it for too long.
    pub fn open(cache: &Path, at: &DeviceReport, products: &Products) -> io::Result<Self> {
        let device = format!(
            "{} {}, {}, {} bytes",
            at.api.name(),
            at.name,
            at.driver,
            at.memory.unwrap_or(0),
        );
        let mut hasher = DefaultHasher::new();
        device.hash(&mut hasher);
        let path = cache.join(format!("products-{:016x}.json", hasher.finish()));
        fs::create_dir_all(cache)?;
        let lock = File::create(path.with_extension("lock"))?;
        wait_for(&lock)?;
        let mut kept = Self {
            path,
            device,
            products: format!("{products:?}"),
            choices: BTreeMap::new(),
            trying: None,
            ended: Vec::new(),
            _lock: lock,
        };
        kept.read();
        // Nobody else is at it: who was has ended.
        if let Some(kernel) = kept.trying.take() {
            kept.count(kernel, 1);
        }
        kept.write()?;
        Ok(kept)
    }

    /// What was chosen, where all of it may be tried.
    pub fn choice(&self) -> Option<ProductChoice> {
        let left_out = self.left_out();
        let choice = self.choices.get(&self.products).copied();
        choice.filter(|choice| {
            choice
                .kernels
                .iter()
                .all(|kernel| !left_out.contains(kernel))
        })
    }

    pub fn left_out(&self) -> Vec<ProductKernel> {
        let too_often = self.ended.iter().filter(|(_, times)| *times >= TOO_OFTEN);
        too_often.map(|(kernel, _)| *kernel).collect()
    }

    /// Notes that `kernel` is tried from now on. Without the usual one there is nothing to try.
    pub fn begin(&mut self, kernel: ProductKernel) {
        self.trying = Some(kernel).filter(|kernel| *kernel != ProductKernel::Usual);
        self.try_to_write();
    }

    /// Notes that the device did not survive `kernel`.
    pub fn leave_out(&mut self, kernel: ProductKernel) {
        self.trying = None;
        if kernel != ProductKernel::Usual {
            self.count(kernel, TOO_OFTEN);
        }
        self.try_to_write();
    }

    /// Notes what was chosen, if that is to be kept. What was tried before that has ended well.
    pub fn done(&mut self, choice: Option<ProductChoice>) {
        if let Some(choice) = choice {
            self.choices.insert(self.products.clone(), choice);
        }
        self.trying = None;
        self.ended.retain(|(_, times)| *times >= TOO_OFTEN);
        self.try_to_write();
    }

    fn count(&mut self, kernel: ProductKernel, times: u64) {
        match self.ended.iter_mut().find(|(ended, _)| *ended == kernel) {
            Some((_, counted)) => *counted = counted.saturating_add(times),
            None => self.ended.push((kernel, times)),
        }
    }

    fn read(&mut self) {
        let Some(kept) = fs::read(&self.path)
            .ok()
            .and_then(|text| serde_json::from_slice::<Value>(&text).ok())
            .filter(|kept| kept["device"] == self.device.as_str())
        else {
            return;
        };
        let named = |name: &Value| ProductKernel::named(name.as_str()?);
        let choice = |kernels: &Value| {
            let kernels = kernels.as_array()?.iter().map(named);
            let kernels = kernels.collect::<Option<Vec<_>>>()?.try_into().ok()?;
            Some(ProductChoice { kernels })
        };
        for (products, kernels) in kept["choices"].as_object().into_iter().flatten() {
            if let Some(choice) = choice(kernels) {
                self.choices.insert(products.clone(), choice);
            }
        }
        self.trying = named(&kept["trying"]);
        for (name, times) in kept["ended"].as_object().into_iter().flatten() {
            if let (Some(kernel), Some(times)) = (ProductKernel::named(name), times.as_u64()) {
                self.count(kernel, times);
            }
        }
    }

    fn try_to_write(&self) {
        if let Err(error) = self.write() {
            tracing::debug!(path = ?self.path, %error, "the choice of kernels is not kept");
        }
    }

    fn write(&self) -> io::Result<()> {
        let choices = self.choices.iter().map(|(products, choice)| {
            let kernels = choice.kernels.map(ProductKernel::name);
            (products.clone(), json!(kernels))
        });
        let ended = self.ended.iter();
        let ended = ended.map(|(kernel, times)| (kernel.name().to_owned(), json!(times)));
        let text = json!({
            "device": self.device,
            "choices": choices.collect::<Map<_, _>>(),
            "trying": self.trying.map(ProductKernel::name),
            "ended": ended.collect::<Map<_, _>>(),
        });
        // The process may end at any time.
        let begun = self.path.with_extension("new");
        fs::write(&begun, text.to_string())?;
        fs::rename(&begun, &self.path)
    }
}

/// Waits for whoever has the lock, but not for ever: it may hang, and others have devices of the same
/// name.
fn wait_for(lock: &File) -> io::Result<()> {
    let started = Instant::now();
    loop {
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) if started.elapsed() < LONGEST_WAIT => {}
            other => return Ok(other?),
        }
        if started.elapsed() < RETRY {
            tracing::info!("waiting for another start that chooses kernels on such a device");
        }
        thread::sleep(RETRY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;
    use burn::tensor::DType;
    use std::sync::mpsc::channel;

    fn sizes() -> Products {
        Products {
            matrices: vec![[64, 192], [96, 64]],
            layers: 2,
            head: Some([64, 1000]),
            dtype: DType::BF16,
            most_tokens: 576,
            most_rows: 64,
        }
    }

    /// The CPU's free memory changes: one report is the device.
    struct Directory(PathBuf, DeviceReport);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("hearth-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            Self(path, device::list().pop().unwrap())
        }

        fn open(&self) -> Kept {
            Kept::open(&self.0, &self.1, &sizes()).unwrap()
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const CHOICE: ProductChoice = ProductChoice {
        kernels: [
            ProductKernel::Usual,
            ProductKernel::OrderedMma,
            ProductKernel::LargeMma,
        ],
    };

    #[test]
    fn what_was_chosen_is_read_again_for_the_same_device_and_sizes_and_no_others() {
        let cache = Directory::new("kept-products");
        assert_eq!(cache.open().choice(), None);
        cache.open().done(Some(CHOICE));
        assert_eq!(cache.open().choice(), Some(CHOICE));
        let at = cache.1.clone();
        let another = DeviceReport {
            name: "another".to_owned(),
            ..at.clone()
        };
        let newer = DeviceReport {
            driver: "newer".to_owned(),
            ..at.clone()
        };
        let fewer = Products {
            most_tokens: 64,
            ..sizes()
        };
        let kept = |at: &DeviceReport, sizes: &Products| Kept::open(&cache.0, at, sizes).unwrap();
        for (at, sizes) in [(&another, &sizes()), (&newer, &sizes()), (&at, &fewer)] {
            assert_eq!(kept(at, sizes).choice(), None);
            kept(at, sizes).done(Some(ProductChoice::default()));
        }
        // Not even where its file has the name of another device's.
        let (path, other) = (cache.open().path.clone(), kept(&another, &sizes()));
        fs::copy(&path, &other.path).unwrap();
        drop(other);
        assert_eq!(kept(&another, &sizes()).choice(), None);
        assert_eq!(cache.open().choice(), Some(CHOICE));
        let mut names = fs::read_dir(&cache.0).unwrap();
        assert!(
            names.all(|file| file.unwrap().path().extension().unwrap() != "new"),
            "nothing half written"
        );
    }

    #[test]
    fn a_file_that_is_broken_is_as_none() {
        let cache = Directory::new("broken-products");
        cache.open().done(Some(CHOICE));
        let path = cache.open().path.clone();
        let whole = fs::read_to_string(&path).unwrap();
        for broken in [
            String::new(),
            whole[..whole.len() / 2].to_owned(),
            whole.replace("large-mma", "no-such-kernel"),
            whole.replace("\"usual\",", ""),
            whole.replace("\"usual\"", "7"),
            json!({"device": cache.open().device, "trying": 3, "ended": [7]}).to_string(),
        ] {
            assert_ne!(broken, whole);
            fs::write(&path, &broken).unwrap();
            let kept = cache.open();
            assert_eq!((kept.choice(), kept.left_out()), (None, vec![]), "{broken}");
        }
    }

    #[test]
    fn a_kernel_at_which_starts_end_is_left_out_after_the_second() {
        let cache = Directory::new("ended-products");
        cache.open().done(Some(CHOICE));
        for left_out in [vec![], vec![ProductKernel::OrderedMma]] {
            cache.open().begin(ProductKernel::OrderedMma);
            let kept = cache.open();
            assert_eq!(kept.left_out(), left_out);
            // It was one of those that were chosen.
            assert_eq!(kept.choice(), Some(CHOICE).filter(|_| left_out.is_empty()));
        }
        // It stays out for every model; a choice without it does not bring it back.
        let others = Products {
            layers: 9,
            ..sizes()
        };
        let other = Kept::open(&cache.0, &cache.1, &others).unwrap();
        assert_eq!(other.left_out(), [ProductKernel::OrderedMma]);
        drop(other);
        cache.open().done(Some(ProductChoice::default()));
        assert_eq!(cache.open().left_out(), [ProductKernel::OrderedMma]);
        assert_eq!(cache.open().choice(), Some(ProductChoice::default()));
    }

    #[test]
    fn a_kernel_that_took_the_device_with_it_is_left_out_at_once_and_the_usual_one_never() {
        let cache = Directory::new("lost-products");
        cache.open().leave_out(ProductKernel::TmaMma);
        cache.open().leave_out(ProductKernel::Usual);
        cache.open().begin(ProductKernel::Usual);
        assert_eq!(cache.open().left_out(), [ProductKernel::TmaMma]);
    }

    #[test]
    fn a_start_that_was_stopped_is_forgotten_when_the_kernel_ends_well() {
        let cache = Directory::new("stopped-products");
        for _ in 0..3 {
            cache.open().begin(ProductKernel::Mma);
            cache.open().done(Some(CHOICE));
        }
        assert_eq!(cache.open().left_out(), []);
    }

    #[test]
    fn a_second_start_waits_for_the_first() {
        let cache = Directory::new("two-products");
        let mut first = cache.open();
        first.begin(ProductKernel::TmaMma);
        let (opened, second) = channel();
        std::thread::scope(|threads| {
            threads.spawn(|| opened.send(cache.open().choice()).unwrap());
            let early = second.recv_timeout(Duration::from_millis(100));
            assert!(early.is_err(), "it did not wait");
            first.done(Some(CHOICE));
            drop(first);
            assert_eq!(second.recv().unwrap(), Some(CHOICE));
        });
        assert_eq!(cache.open().ended, []);
    }

    #[test]
    fn where_nothing_can_be_written_nothing_is_kept() {
        let cache = Directory::new("no-products");
        fs::write(&cache.0, b"a file").unwrap();
        assert!(Kept::open(&cache.0, &cache.1, &sizes()).is_err());
        let _ = fs::remove_file(&cache.0);
    }
}

//! The tuning cache: a file with the kernels that were chosen on a device, and with those at which
//! starts ended.

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

/// A kernel at which this many starts in a row ended is not tried any more. One is not enough,
/// because a user may have stopped the server at that moment.
const TOO_OFTEN: u64 = 2;

/// Longer than another start needs to choose its kernels on any device that works.
const LONGEST_WAIT: Duration = Duration::from_secs(180);
const RETRY: Duration = Duration::from_millis(50);

/// The open file. No other start reads or writes it while this exists, so that two starts never
/// time kernels on one device at the same time.
pub(super) struct TuningCache {
    path: PathBuf,
    /// The device, in full: the hash in the file's name may be that of another device.
    device: String,
    /// The matrices that this start chooses kernels for.
    products: String,
    /// The choice for each set of matrices.
    choices: BTreeMap<String, ProductChoice>,
    trying: Option<ProductKernel>,
    /// Kernels at which starts ended, and how many did. Such a kernel may have lost the device or
    /// ended the process.
    ended: Vec<(ProductKernel, u64)>,
    _lock: File,
}

impl TuningCache {
    /// Opens the file of the device `at` in `directory`, and waits while another start has it
    /// open. A file that is missing, damaged or of another device counts as an empty one.
    ///
    /// # Errors
    /// The file cannot be written, or another start has it open for too long.
    pub fn open(directory: &Path, at: &DeviceReport, products: &Products) -> io::Result<Self> {
        let device = format!(
            "{} {}, {}, {} bytes",
            at.api.name(),
            at.name,
            at.driver,
            at.memory.unwrap_or(0),
        );
        let mut hasher = DefaultHasher::new();
        device.hash(&mut hasher);
        let path = directory.join(format!("products-{:016x}.json", hasher.finish()));
        fs::create_dir_all(directory)?;
        let lock = File::create(path.with_extension("lock"))?;
        wait_for(&lock)?;
        let mut cache = Self {
            path,
            device,
            products: format!("{products:?}"),
            choices: BTreeMap::new(),
            trying: None,
            ended: Vec::new(),
            _lock: lock,
        };
        cache.read();
        // No other start has the file open, so the one that was trying this kernel has ended.
        if let Some(kernel) = cache.trying.take() {
            cache.count(kernel, 1);
        }
        cache.write()?;
        Ok(cache)
    }

    /// The choice of an earlier start for the same matrices, unless a kernel of it is left out.
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

    /// The kernels that are not tried any more.
    pub fn left_out(&self) -> Vec<ProductKernel> {
        let too_often = self.ended.iter().filter(|(_, times)| *times >= TOO_OFTEN);
        too_often.map(|(kernel, _)| *kernel).collect()
    }

    /// Notes that `kernel` is tried from now on. The usual kernel is never noted, because nothing
    /// runs without it.
    pub fn begin(&mut self, kernel: ProductKernel) {
        self.trying = Some(kernel).filter(|kernel| *kernel != ProductKernel::Usual);
        self.try_to_write();
    }

    /// Notes that `kernel` lost the device.
    pub fn leave_out(&mut self, kernel: ProductKernel) {
        self.trying = None;
        if kernel != ProductKernel::Usual {
            self.count(kernel, TOO_OFTEN);
        }
        self.try_to_write();
    }

    /// Notes the choice, if there is one to keep, and that all kernels tried so far have returned.
    pub fn finish(&mut self, choice: Option<ProductChoice>) {
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
        let Some(stored) = fs::read(&self.path)
            .ok()
            .and_then(|text| serde_json::from_slice::<Value>(&text).ok())
            .filter(|stored| stored["device"] == self.device.as_str())
        else {
            return;
        };
        let named = |name: &Value| ProductKernel::named(name.as_str()?);
        let choice = |kernels: &Value| {
            let kernels = kernels.as_array()?.iter().map(named);
            let kernels = kernels.collect::<Option<Vec<_>>>()?.try_into().ok()?;
            Some(ProductChoice { kernels })
        };
        for (products, kernels) in stored["choices"].as_object().into_iter().flatten() {
            if let Some(choice) = choice(kernels) {
                self.choices.insert(products.clone(), choice);
            }
        }
        self.trying = named(&stored["trying"]);
        for (name, times) in stored["ended"].as_object().into_iter().flatten() {
            if let (Some(kernel), Some(times)) = (ProductKernel::named(name), times.as_u64()) {
                self.count(kernel, times);
            }
        }
    }

    fn try_to_write(&self) {
        if let Err(error) = self.write() {
            tracing::debug!(path = ?self.path, %error, "the tuning cache cannot be written");
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
        // By a rename, because the process may end at any time.
        let begun = self.path.with_extension("new");
        fs::write(&begun, text.to_string())?;
        fs::rename(&begun, &self.path)
    }
}

/// Waits for the start that has the lock, but not for ever: that start may hang, or it may be on
/// another machine with a device of the same name.
fn wait_for(lock: &File) -> io::Result<()> {
    let started = Instant::now();
    loop {
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) if started.elapsed() < LONGEST_WAIT => {}
            other => return Ok(other?),
        }
        if started.elapsed() < RETRY {
            tracing::info!("waiting for another start that is choosing kernels for this device");
        }
        thread::sleep(RETRY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::list;
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

    /// A directory for the cache and one report of the device: the CPU's free memory, which is
    /// part of the report, changes from one to the next.
    struct Directory(PathBuf, DeviceReport);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("hearth-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            Self(path, list().pop().unwrap())
        }

        fn open(&self) -> TuningCache {
            TuningCache::open(&self.0, &self.1, &sizes()).unwrap()
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
    fn a_choice_is_read_again_for_the_same_device_and_sizes_and_no_others() {
        let cache = Directory::new("chosen-products");
        assert_eq!(cache.open().choice(), None);
        cache.open().finish(Some(CHOICE));
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
        let open =
            |at: &DeviceReport, sizes: &Products| TuningCache::open(&cache.0, at, sizes).unwrap();
        for (at, sizes) in [(&another, &sizes()), (&newer, &sizes()), (&at, &fewer)] {
            assert_eq!(open(at, sizes).choice(), None);
            open(at, sizes).finish(Some(ProductChoice::default()));
        }
        // Another device does not read the file even under the name of its own.
        let (path, other) = (cache.open().path.clone(), open(&another, &sizes()));
        fs::copy(&path, &other.path).unwrap();
        drop(other);
        assert_eq!(open(&another, &sizes()).choice(), None);
        assert_eq!(cache.open().choice(), Some(CHOICE));
        let mut names = fs::read_dir(&cache.0).unwrap();
        assert!(
            names.all(|file| file.unwrap().path().extension().unwrap() != "new"),
            "a half-written file is left"
        );
    }

    #[test]
    fn a_damaged_file_counts_as_none() {
        let cache = Directory::new("broken-products");
        cache.open().finish(Some(CHOICE));
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
            let read = cache.open();
            assert_eq!((read.choice(), read.left_out()), (None, vec![]), "{broken}");
        }
    }

    #[test]
    fn a_kernel_at_which_starts_end_is_left_out_after_the_second() {
        let cache = Directory::new("ended-products");
        cache.open().finish(Some(CHOICE));
        for left_out in [vec![], vec![ProductKernel::OrderedMma]] {
            cache.open().begin(ProductKernel::OrderedMma);
            let read = cache.open();
            assert_eq!(read.left_out(), left_out);
            // The kernel is part of the choice.
            assert_eq!(read.choice(), Some(CHOICE).filter(|_| left_out.is_empty()));
        }
        // The kernel stays out for every model, and a choice without it does not bring it back.
        let others = Products {
            layers: 9,
            ..sizes()
        };
        let other = TuningCache::open(&cache.0, &cache.1, &others).unwrap();
        assert_eq!(other.left_out(), [ProductKernel::OrderedMma]);
        drop(other);
        cache.open().finish(Some(ProductChoice::default()));
        assert_eq!(cache.open().left_out(), [ProductKernel::OrderedMma]);
        assert_eq!(cache.open().choice(), Some(ProductChoice::default()));
    }

    #[test]
    fn a_kernel_that_lost_the_device_is_left_out_at_once_and_the_usual_one_never() {
        let cache = Directory::new("lost-products");
        cache.open().leave_out(ProductKernel::TmaMma);
        cache.open().leave_out(ProductKernel::Usual);
        cache.open().begin(ProductKernel::Usual);
        assert_eq!(cache.open().left_out(), [ProductKernel::TmaMma]);
    }

    #[test]
    fn a_stopped_start_is_forgotten_when_the_kernel_returns() {
        let cache = Directory::new("stopped-products");
        for _ in 0..3 {
            cache.open().begin(ProductKernel::Mma);
            cache.open().finish(Some(CHOICE));
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
            first.finish(Some(CHOICE));
            drop(first);
            assert_eq!(second.recv().unwrap(), Some(CHOICE));
        });
        assert_eq!(cache.open().ended, []);
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_an_error() {
        let cache = Directory::new("no-products");
        fs::write(&cache.0, b"a file").unwrap();
        assert!(TuningCache::open(&cache.0, &cache.1, &sizes()).is_err());
        let _ = fs::remove_file(&cache.0);
    }
}

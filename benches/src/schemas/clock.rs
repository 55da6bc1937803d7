//! The processor time of a thread: other programs on the machine do not count.

use std::time::Duration;

/// The time that this thread has computed.
#[cfg(unix)]
pub fn now() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid place for the answer.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) } != 0;
    if failed {
        return Duration::ZERO;
    }
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The time since the program began to measure.
#[cfg(not(unix))]
pub fn now() -> Duration {
    use std::sync::OnceLock;
    use std::time::Instant;
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    BEGAN.get_or_init(Instant::now).elapsed()
}

/// The result of `work`, and the time that it took.
pub fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let began = now();
    let result = work();
    (result, now().saturating_sub(began))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_sleeps_spends_no_time() {
        let ((), asleep) = timed(|| std::thread::sleep(Duration::from_millis(50)));
        assert!(asleep < Duration::from_millis(40), "{asleep:?}");
        let (sum, busy) = timed(|| {
            let began = std::time::Instant::now();
            let mut sum = 0_u64;
            while began.elapsed() < Duration::from_millis(50) {
                sum = std::hint::black_box(sum + 1);
            }
            sum
        });
        assert!(sum > 0 && busy > Duration::from_micros(10), "{busy:?}");
    }
}

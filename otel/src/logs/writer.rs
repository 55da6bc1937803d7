//! Writes lines on a thread of its own, so that whoever logs never waits for the reader of a pipe
//! or for a disk, and never fails because of one.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use tracing_subscriber::fmt::MakeWriter;

/// Lines that may wait; further ones are dropped.
const MOST_LINES: usize = 8192;
/// Bytes of lines that may wait; further lines are dropped.
const MOST_BYTES: usize = 8 << 20;
/// Time between two attempts to ask a full queue for a flush.
const PAUSE: Duration = Duration::from_millis(5);

/// The stream that a line is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Output,
    Error,
}

enum Message {
    Line(Stream, Vec<u8>),
    Flush(SyncSender<()>),
}

/// The sending half: clones send to the same thread.
#[derive(Clone)]
pub struct Writer {
    queue: SyncSender<Message>,
    waiting_bytes: Arc<AtomicUsize>,
    dropped: Arc<AtomicU64>,
}

impl Writer {
    /// Starts the thread, which writes to `output` and `error`.
    ///
    /// # Errors
    /// The system starts no thread.
    pub fn start(
        output: impl Write + Send + 'static,
        error: impl Write + Send + 'static,
    ) -> io::Result<Self> {
        let (queue, lines) = sync_channel(MOST_LINES);
        let writer = Self {
            queue,
            waiting_bytes: Arc::default(),
            dropped: Arc::default(),
        };
        let (waiting, dropped) = (
            Arc::clone(&writer.waiting_bytes),
            Arc::clone(&writer.dropped),
        );
        thread::Builder::new()
            .name("hearth-log".to_owned())
            .spawn(move || write_all(&lines, output, error, &waiting, &dropped))?;
        Ok(writer)
    }

    /// Queues a line, which ends with its line break, or drops and counts it.
    pub fn send(&self, stream: Stream, line: &[u8]) {
        let bytes = line.len();
        if self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > MOST_BYTES
            || self
                .queue
                .try_send(Message::Line(stream, line.to_vec()))
                .is_err()
        {
            self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Lines that were not written: too many waited, or the stream did not take them.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits until everything queued so far is written, at most for `patience`.
    pub fn flush(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        let (done, wait) = sync_channel(1);
        let mut message = Message::Flush(done);
        loop {
            match self.queue.try_send(message) {
                Ok(()) => break,
                Err(TrySendError::Full(back)) if Instant::now() < deadline => {
                    message = back;
                    thread::sleep(PAUSE);
                }
                Err(_) => return,
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        match wait.recv_timeout(left) {
            Ok(()) | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
    }
}

fn write_all(
    lines: &Receiver<Message>,
    mut output: impl Write,
    mut error: impl Write,
    waiting: &AtomicUsize,
    dropped: &AtomicU64,
) {
    for message in lines {
        match message {
            Message::Line(stream, line) => {
                let written = match stream {
                    Stream::Output => output.write_all(&line).and_then(|()| output.flush()),
                    Stream::Error => error.write_all(&line),
                };
                waiting.fetch_sub(line.len(), Ordering::Relaxed);
                if written.is_err() {
                    dropped.fetch_add(1, Ordering::Relaxed);
                }
            }
            Message::Flush(done) => {
                // A flush that nobody waits for any more has nothing to report.
                let _ = done.try_send(());
            }
        }
    }
}

/// One log line on its way to standard error.
pub struct Line<'w>(&'w Writer);

impl Write for Line<'_> {
    /// The formatter writes a line in one call.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(Stream::Error, bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'w> MakeWriter<'w> for Writer {
    type Writer = Line<'w>;

    fn make_writer(&'w self) -> Line<'w> {
        Line(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Takes nothing while the lock is held.
    #[derive(Clone, Default)]
    struct Pipe(Arc<Mutex<Vec<u8>>>);

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Broken;

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_come_out_in_order_on_their_stream() {
        let (output, error) = (Pipe::default(), Pipe::default());
        let writer = Writer::start(output.clone(), error.clone()).unwrap();
        for number in 0..100 {
            writer.send(Stream::Error, format!("{number}\n").as_bytes());
        }
        writer.send(Stream::Output, b"ready\n");
        writer.flush(Duration::from_secs(10));
        let expected: String = (0..100).map(|number| format!("{number}\n")).collect();
        assert_eq!(*error.0.lock().unwrap(), expected.as_bytes());
        assert_eq!(*output.0.lock().unwrap(), b"ready\n");
        assert_eq!(writer.dropped(), 0);
    }

    #[test]
    fn a_reader_that_does_not_read_costs_lines_and_no_time() {
        let error = Pipe::default();
        let writer = Writer::start(io::sink(), error.clone()).unwrap();
        let unread = error.0.lock().unwrap();
        let line = vec![b'x'; 10_000];
        let started = Instant::now();
        for _ in 0..20_000 {
            writer.send(Stream::Error, &line);
        }
        writer.flush(Duration::from_millis(50));
        assert!(started.elapsed() < Duration::from_secs(5));
        assert!(writer.waiting_bytes.load(Ordering::Relaxed) <= MOST_BYTES);
        let dropped = writer.dropped();
        assert!(dropped > 19_000 && dropped < 20_000, "{dropped}");
        drop(unread);
        writer.flush(Duration::from_secs(10));
        let written = error.0.lock().unwrap().len() as u64 / 10_000;
        assert_eq!(written + dropped, 20_000);
    }

    #[test]
    fn a_stream_that_is_gone_costs_its_lines_alone() {
        let output = Pipe::default();
        let writer = Writer::start(output.clone(), Broken).unwrap();
        writer.send(Stream::Error, b"lost\n");
        writer.send(Stream::Output, b"kept\n");
        writer.flush(Duration::from_secs(10));
        assert_eq!(writer.dropped(), 1);
        assert_eq!(*output.0.lock().unwrap(), b"kept\n");
    }
}

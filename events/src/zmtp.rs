//! ZMTP 3.0 (ZeroMQ RFC 23) over TCP with the mechanism NULL: greeting, READY, frames.
//!
//! A peer of a newer version speaks 3.0 with us, in which a subscription is a message whose first byte
//! is 1.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Time in which a peer must complete the greeting.
const PATIENCE: Duration = Duration::from_secs(10);

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// Bytes of an empty command or of a subscription beyond which a peer is refused.
pub const SMALL: usize = 64 << 10;

/// The frames of a message.
pub type Message = Vec<Vec<u8>>;

/// A message of a peer.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    Message(Message),
    /// The answer that the peer expects to a PING.
    Ping {
        pong: Vec<u8>,
    },
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn greeting() -> [u8; 64] {
    let mut greeting = [0; 64];
    (greeting[0], greeting[9]) = (0xff, 0x7f);
    greeting[10] = 3;
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

/// Greets the peer as a socket of the type `own`, and checks that it is one of `others`.
///
/// # Errors
/// The peer speaks something else, is another type of socket, or does not answer in time.
pub async fn greet(stream: &mut TcpStream, own: &str, others: &[&str]) -> io::Result<()> {
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the greeting took too long");
    timeout(PATIENCE, exchange(stream, own, others))
        .await
        .map_err(late)?
}

async fn exchange(stream: &mut TcpStream, own: &str, others: &[&str]) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.write_all(&greeting()).await?;
    let mut peer = [0; 64];
    // The first bytes alone tell whether more will come.
    stream.read_exact(&mut peer[..11]).await?;
    if peer[0] != 0xff || peer[9] & 1 != 1 || peer[10] < 3 {
        return Err(invalid("the peer does not speak ZMTP 3"));
    }
    stream.read_exact(&mut peer[11..]).await?;
    if peer[12..32] != greeting()[12..32] {
        return Err(invalid("the peer asks for another mechanism than NULL"));
    }
    stream.write_all(&ready(own)).await?;
    let frame = read_frame(stream, SMALL).await?;
    let kind = frame.command.then(|| socket_type(&frame.body)).flatten();
    match kind {
        Some(kind) if others.iter().any(|other| other.as_bytes() == kind) => Ok(()),
        _ => Err(invalid("the peer is another type of socket")),
    }
}

fn ready(own: &str) -> Vec<u8> {
    let mut body = b"\x05READY\x0bSocket-Type".to_vec();
    body.extend((own.len() as u32).to_be_bytes());
    body.extend(own.as_bytes());
    let mut bytes = vec![COMMAND, body.len() as u8];
    bytes.extend(body);
    bytes
}

/// The socket type in a READY command.
fn socket_type(body: &[u8]) -> Option<&[u8]> {
    let mut rest = body.strip_prefix(b"\x05READY")?;
    while let Some((&length, after)) = rest.split_first() {
        let (name, after) = after.split_at_checked(usize::from(length))?;
        let (length, after) = after.split_first_chunk::<4>()?;
        let (value, after) = after.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return Some(value);
        }
        rest = after;
    }
    None
}

struct Frame {
    more: bool,
    command: bool,
    body: Vec<u8>,
}

async fn read_frame(reader: &mut (impl AsyncRead + Unpin), most: usize) -> io::Result<Frame> {
    let flags = reader.read_u8().await?;
    if flags & !(MORE | LONG | COMMAND) != 0 {
        return Err(invalid("a frame has unknown flags"));
    }
    let length = match flags & LONG {
        0 => u64::from(reader.read_u8().await?),
        _ => reader.read_u64().await?,
    };
    if length > most as u64 {
        return Err(invalid("a frame is too long"));
    }
    // Memory grows with what arrives, not with what is announced.
    let mut body = Vec::new();
    let read = reader.take(length).read_to_end(&mut body).await?;
    if read as u64 != length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Frame {
        more: flags & MORE != 0,
        command: flags & COMMAND != 0,
        body,
    })
}

/// Reads what the peer sends next; a message has at most `most` bytes and 16 frames. It must not be
/// dropped before it is done.
///
/// # Errors
/// The connection ended, or the peer broke the protocol.
pub async fn read(reader: &mut (impl AsyncRead + Unpin), most: usize) -> io::Result<Received> {
    let (mut message, mut left) = (Message::new(), most);
    loop {
        let frame = read_frame(reader, left).await?;
        if frame.command {
            if let Some(context) = frame.body.strip_prefix(b"\x04PING") {
                // The context follows two bytes with a time to live.
                let context = context.get(2..).unwrap_or_default();
                let mut body = b"\x04PONG".to_vec();
                body.extend(&context[..context.len().min(16)]);
                let mut pong = vec![COMMAND, body.len() as u8];
                pong.extend(body);
                return Ok(Received::Ping { pong });
            }
            continue;
        }
        left -= frame.body.len();
        message.push(frame.body);
        if !frame.more {
            return Ok(Received::Message(message));
        }
        if message.len() == 16 {
            return Err(invalid("a message has too many frames"));
        }
    }
}

/// Writes a message.
///
/// # Errors
/// The connection ended.
pub async fn write(writer: &mut (impl AsyncWrite + Unpin), frames: &[&[u8]]) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(frames.iter().map(|frame| frame.len() + 9).sum());
    for (at, frame) in frames.iter().enumerate() {
        let more = if at + 1 < frames.len() { MORE } else { 0 };
        match u8::try_from(frame.len()) {
            Ok(length) => bytes.extend([more, length]),
            Err(_) => {
                bytes.push(more | LONG);
                bytes.extend((frame.len() as u64).to_be_bytes());
            }
        }
        bytes.extend_from_slice(frame);
    }
    writer.write_all(&bytes).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.build().unwrap().block_on(future)
    }

    #[test]
    fn messages_survive_the_wire_and_commands_are_skipped() {
        block_on(async {
            let long = vec![7; 300];
            let mut bytes = vec![COMMAND, 2, 1, b'X'];
            write(&mut bytes, &[b"", b"ab", &long]).await.unwrap();
            bytes.extend(b"\x04\x09\x04PING\x00\x01cd");
            let mut rest = &bytes[..];
            let message = read(&mut rest, 1000).await.unwrap();
            assert_eq!(
                message,
                Received::Message(vec![vec![], b"ab".to_vec(), long])
            );
            let pong = b"\x04\x07\x04PONGcd".to_vec();
            assert_eq!(
                read(&mut rest, 1000).await.unwrap(),
                Received::Ping { pong }
            );
            assert!(rest.is_empty());
        });
    }

    #[test]
    fn long_and_broken_frames_are_refused() {
        block_on(async {
            for bytes in [
                &b"\x02\x7f\xff\xff\xff\xff\xff\xff\xff"[..],
                b"\x00\x65",
                b"\x80\x00",
                b"\x00\x02a",
                b"\x01\x64",
                b"",
            ] {
                assert!(read(&mut &bytes[..], 100).await.is_err(), "{bytes:?}");
            }
            let many = [1, 0].repeat(20);
            assert!(read(&mut &many[..], 100).await.is_err());
        });
    }

    #[test]
    fn a_ready_command_names_its_socket() {
        assert_eq!(socket_type(&ready("PUB")[2..]), Some(&b"PUB"[..]));
        let with_identity =
            b"\x05READY\x08Identity\x00\x00\x00\x00\x0bSocket-Type\x00\x00\x00\x03SUB";
        assert_eq!(socket_type(with_identity), Some(&b"SUB"[..]));
        assert_eq!(
            socket_type(b"\x05READY\x0bSocket-Type\xff\xff\xff\xffSUB"),
            None
        );
        assert_eq!(socket_type(b"\x05ERROR"), None);
    }
}

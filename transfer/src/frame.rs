//! A message on the wire: `length: u32, kind: u8, checksum: u32, payload`, little-endian. The
//! checksum is the CRC-32 of the kind and the payload.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::error::WireError;

const HEAD: usize = 9;

/// A message whose kind and payload are not interpreted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub kind: u8,
    pub payload: Vec<u8>,
}

fn checksum(kind: u8, parts: &[&[u8]]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&[kind]);
    parts.iter().for_each(|part| crc.update(part));
    crc.finalize()
}

/// Writes a frame whose payload is all of `parts`.
///
/// # Errors
/// The connection fails, or the peer does not take the bytes within `patience`.
pub(crate) async fn write(
    stream: &mut (impl AsyncWrite + Unpin),
    kind: u8,
    parts: &[&[u8]],
    patience: Duration,
) -> Result<(), WireError> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let too_long = |_| WireError::TooLong {
        given: length,
        bound: u32::MAX as usize,
    };
    let mut head = [0; HEAD];
    head[..4].copy_from_slice(&u32::try_from(length).map_err(too_long)?.to_le_bytes());
    head[4] = kind;
    head[5..].copy_from_slice(&checksum(kind, parts).to_le_bytes());
    let all = async {
        stream.write_all(&head).await?;
        for part in parts {
            stream.write_all(part).await?;
        }
        stream.flush().await
    };
    let written = tokio::time::timeout(patience, all).await;
    Ok(written.map_err(|_| WireError::Silent(patience))??)
}

/// Reads a frame with a payload of at most `bound` bytes.
///
/// # Errors
/// The connection fails or ends, the frame is too long or damaged, or it is not complete within
/// `patience`.
pub(crate) async fn read(
    stream: &mut (impl AsyncRead + Unpin),
    bound: usize,
    patience: Duration,
) -> Result<Frame, WireError> {
    let all = async {
        let mut head = [0; HEAD];
        stream.read_exact(&mut head).await?;
        let [l0, l1, l2, l3, kind, c0, c1, c2, c3] = head;
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let given = u32::from_le_bytes([c0, c1, c2, c3]);
        if length > bound {
            return Err(WireError::TooLong {
                given: length,
                bound,
            });
        }
        let mut payload = Vec::with_capacity(length);
        let whole = stream.take(length as u64).read_to_end(&mut payload).await?;
        if whole < length {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
        }
        let computed = checksum(kind, &[&payload]);
        match given == computed {
            true => Ok(Frame { kind, payload }),
            false => Err(WireError::Checksum { given, computed }),
        }
    };
    let frame = tokio::time::timeout(patience, all).await;
    frame.map_err(|_| WireError::Silent(patience))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PATIENCE: Duration = Duration::from_millis(200);

    fn run<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(work)
    }

    async fn bytes(kind: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let (front, back) = payload.split_at(payload.len() / 3);
        write(&mut bytes, kind, &[front, back], PATIENCE)
            .await
            .unwrap();
        bytes
    }

    proptest! {
        #[test]
        fn a_frame_is_read_as_it_was_written_and_damage_is_noticed(
            kind: u8,
            payload in proptest::collection::vec(any::<u8>(), 0..300),
            at: prop::sample::Index,
            bit in 0..8u8,
        ) {
            run(async {
                let good = bytes(kind, &payload).await;
                let read_all = |bytes: Vec<u8>| async move {
                    read(&mut bytes.as_slice(), 300, PATIENCE).await
                };
                let frame = read_all(good.clone()).await.unwrap();
                assert_eq!(frame, Frame { kind, payload: payload.clone() });
                let mut damaged = good.clone();
                damaged[at.index(good.len())] ^= 1 << bit;
                assert!(read_all(damaged).await.is_err());
                let cut = good[..at.index(good.len())].to_vec();
                assert!(read_all(cut).await.is_err());
            });
        }
    }

    #[test]
    fn a_length_beyond_the_bound_is_refused_before_anything_is_allocated() {
        run(async {
            let good = bytes(1, &[0; 100]).await;
            let error = read(&mut good.as_slice(), 99, PATIENCE).await.unwrap_err();
            let text = "a message of 100 bytes is longer than the 99 bytes allowed";
            assert_eq!(error.to_string(), text);
        });
    }

    #[test]
    fn a_peer_that_stops_in_a_frame_is_given_up() {
        run(async {
            let good = bytes(1, &[7; 100]).await;
            let (mut ours, mut theirs) = tokio::io::duplex(1000);
            theirs.write_all(&good[..50]).await.unwrap();
            let error = read(&mut ours, 100, PATIENCE).await.unwrap_err();
            assert!(matches!(error, WireError::Silent(_)), "{error}");
            // The same peer does not take more than its buffer holds.
            let error = write(&mut ours, 1, &[&[0; 5000]], PATIENCE)
                .await
                .unwrap_err();
            assert!(matches!(error, WireError::Silent(_)), "{error}");
        });
    }
}

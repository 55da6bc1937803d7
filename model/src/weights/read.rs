//! Reads tensors.

use std::borrow::Cow;
use std::path::PathBuf;

use super::error::WeightError;
use super::format::Format;
use super::mapped::Bytes;
use super::stored::StoredTensor;
use super::view::TensorView;
use super::{Found, Source, Weights, dummy};

impl Weights {
    /// The tensor `name`, which must have the shape `expected`. Names are found with and
    /// without the prefix `model.`, which checkpoints of a bare base model lack.
    ///
    /// # Errors
    /// Names the tensor that is missing or has a wrong shape or an unsupported dtype.
    pub fn get(&self, name: &str, expected: &[usize]) -> Result<TensorView<'_>, WeightError> {
        let (files, found) = match &self.source {
            Source::Files { files, .. } => {
                (files, self.find(name).ok_or_else(|| self.missing(name))?)
            }
            Source::Dummy { dtype, seed } => {
                let bytes = dummy::tensor(name, expected, *dtype, *seed);
                self.progress.inc(bytes.len() as u64);
                return Ok(TensorView {
                    format: Format::Float(*dtype),
                    shape: expected.to_vec(),
                    bytes: Cow::Owned(bytes),
                    heads: None,
                });
            }
        };
        match found {
            Found::Whole(tensor) => {
                self.expect_shape(name, tensor, &tensor.shape, expected)?;
                self.whole(name, tensor, files)
            }
            Found::Gathered(part) => {
                self.expect_shape(name, part.places()[0], part.shape(), expected)?;
                self.progress.inc(part.length() as u64);
                Ok(TensorView {
                    format: part.format(),
                    shape: expected.to_vec(),
                    bytes: Cow::Owned(part.bytes(files)),
                    heads: None,
                })
            }
            Found::Packed(matrix) => {
                self.expect_shape(name, matrix.place(), &matrix.shape(), expected)?;
                self.progress.inc(matrix.bytes() as u64);
                let bytes = matrix.decode(files);
                let bytes = bytes.map_err(|error| WeightError::Packed {
                    tensor: name.to_owned(),
                    problem: error.to_string(),
                })?;
                Ok(TensorView {
                    format: matrix.format(files),
                    shape: expected.to_vec(),
                    bytes: Cow::Owned(bytes),
                    heads: None,
                })
            }
        }
    }

    /// A tensor as it lies in its file.
    fn whole<'a>(
        &'a self,
        name: &str,
        tensor: &'a StoredTensor,
        files: &'a [(PathBuf, Bytes)],
    ) -> Result<TensorView<'a>, WeightError> {
        let row: usize = tensor.shape.iter().skip(1).product();
        // Rows that are to be reordered must begin with a block.
        let cut = tensor.heads.is_some() && !row.is_multiple_of(tensor.format.block().0);
        if cut || matches!(tensor.format, Format::Other(_)) {
            return Err(self.unsupported(name, tensor));
        }
        let bytes = tensor.bytes_in(files);
        self.progress.inc(bytes.len() as u64);
        Ok(TensorView {
            format: tensor.format.clone(),
            shape: tensor.shape.clone(),
            bytes: Cow::Borrowed(bytes),
            heads: tensor.heads,
        })
    }

    /// The stored bytes of the tensor `name` or of those that it is stored as, with what they are; none
    /// for random weights.
    pub fn stored(&self, name: &str) -> Vec<(String, &[u8])> {
        let Source::Files { files, .. } = &self.source else {
            return Vec::new();
        };
        let Some(found) = self.find(name) else {
            return Vec::new();
        };
        let kind = match &found {
            Found::Whole(tensor) => tensor.format.to_string(),
            Found::Gathered(part) => part.format().to_string(),
            Found::Packed(matrix) => matrix.describe(),
        };
        let places = found.places().into_iter();
        places
            .map(|place| (kind.clone(), place.bytes_in(files)))
            .collect()
    }

    /// Returns the memory of a tensor that is not needed for now, or was copied elsewhere, to the system,
    /// so that loading does not hold two copies of a model. The tensor can be read again, from disk.
    pub fn release(&self, name: &str) {
        #[cfg(unix)]
        if let Source::Files { files, .. } = &self.source {
            for place in self.find(name).map_or(Vec::new(), Found::places) {
                let (_, Bytes::Mapped(map)) = &files[place.file] else {
                    continue;
                };
                // SAFETY: the mapping is a file's, read-only: a dropped page is read again from
                // the file when it is touched, with the same bytes.
                let dropped = unsafe {
                    map.unchecked_advise_range(
                        memmap2::UncheckedAdvice::DontNeed,
                        place.bytes.start,
                        place.bytes.len(),
                    )
                };
                if let Err(error) = dropped {
                    tracing::debug!(%error, name, "madvise refused");
                }
            }
        }
        #[cfg(not(unix))]
        let _ = name;
    }
}

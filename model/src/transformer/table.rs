//! A matrix with a row for each token of the vocabulary, in parts where it is larger than what a
//! device binds at once.

use burn::module::{Module, Param};
use burn::tensor::backend::Backend;
use burn::tensor::ops::IntTensor;
use burn::tensor::{Int, Tensor};
use hearth_shaders::{Kernels, Summation};

use super::primitive::{primitive, tensor};

/// A token embedding or an output projection, `[vocab, hidden]`.
#[derive(Module, Debug)]
pub struct Table<B: Backend> {
    /// `[rows_of_a_part, hidden]` one below another, the last part with the remaining rows. There
    /// is a single part where the device binds the whole matrix.
    parts: Vec<Param<Tensor<B, 2>>>,
    rows_of_a_part: usize,
}

impl<B: Backend> Table<B> {
    /// Joins parts of `rows_of_a_part` rows each; the last may have fewer.
    ///
    /// # Panics
    /// If there are no parts.
    pub fn of(parts: Vec<Param<Tensor<B, 2>>>, rows_of_a_part: usize) -> Self {
        assert!(!parts.is_empty(), "a table has a part");
        Self {
            parts,
            rows_of_a_part,
        }
    }

    /// The whole matrix.
    pub fn val(&self) -> Tensor<B, 2> {
        match self.parts.as_slice() {
            [whole] => whole.val(),
            parts => Tensor::cat(parts.iter().map(Param::val).collect(), 0),
        }
    }
}

impl<B: Kernels> Table<B> {
    /// The rows `ids` (`[tokens]`), in the type of activations: `[tokens, hidden]`.
    pub(super) fn embed(&self, ids: IntTensor<B>) -> Tensor<B, 2> {
        let embed = |part: &Param<Tensor<B, 2>>, ids| tensor(B::embed(primitive(part.val()), ids));
        let [first, others @ ..] = self.parts.as_slice() else {
            unreachable!("a table has a part");
        };
        if others.is_empty() {
            return embed(first, ids);
        }
        let ids = Tensor::<B, 1, Int>::from_primitive(ids);
        // Each part gives the rows that it has, and its first row in place of the others.
        let rows_of = |index: usize, part: &Param<Tensor<B, 2>>| {
            let ids = ids.clone() - (index * self.rows_of_a_part) as i32;
            let before = ids.clone().lower_elem(0);
            let beyond = ids.clone().greater_equal_elem(self.rows_of_a_part as i32);
            let outside = before.bool_or(beyond);
            let ids = ids.mask_fill(outside.clone(), 0);
            (embed(part, ids.into_primitive()), outside)
        };
        let (mut rows, _) = rows_of(0, first);
        let [tokens, hidden] = rows.dims();
        for (index, part) in others.iter().enumerate() {
            let (found, outside) = rows_of(index + 1, part);
            let outside = outside.reshape([tokens, 1]).expand([tokens, hidden]);
            rows = found.mask_where(outside, rows);
        }
        rows
    }

    /// `x` (`[tokens, hidden]`) times the transpose of the matrix: `[tokens, vocab]`.
    pub(super) fn project(&self, x: Tensor<B, 2>, summation: Summation) -> Tensor<B, 2> {
        let x = primitive(x);
        let product = |part: &Param<Tensor<B, 2>>| {
            let weight = primitive(part.val());
            tensor::<B, 2>(B::project(x.clone(), weight, None, summation))
        };
        match self.parts.as_slice() {
            [whole] => product(whole),
            parts => Tensor::cat(parts.iter().map(product).collect(), 1),
        }
    }
}

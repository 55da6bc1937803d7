//! What a model multiplies: which sizes are timed, and in which a kernel is compared before it is
//! taken.

use burn::tensor::DType;

use crate::ProductChoice;

/// Fewer tokens have a kernel of their own.
pub(super) const FEWEST: usize = 9;
/// Numbers of tokens at which kernels are compared: on both sides of where tilings change, and such
/// that no tile divides. Hearth's changes above 16 and 32 tokens, cubek's where tokens are more than
/// four of its matrices are high, than its subgroups compute at once, or than a fourth of the rows.
const COMPARED: [usize; 17] = [
    9, 16, 17, 32, 33, 48, 64, 65, 100, 128, 129, 256, 300, 512, 1000, 1025, 2048,
];
/// Rows of a matrix that are compared where it is looked at briefly.
const FEW_ROWS: usize = 512;
/// What tilings go by: a matrix of fewer rows has the same remainder of it.
const ALIGNED: usize = 256;

/// What a model multiplies. Chosen kernels are for these sizes and no others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Products {
    /// Columns and rows of a layer's matrices.
    pub matrices: Vec<[usize; 2]>,
    pub layers: usize,
    /// Columns and rows of the output projection.
    pub head: Option<[usize; 2]>,
    pub dtype: DType,
    /// Tokens of a step.
    pub most_tokens: usize,
    /// Those of them that the output projection is for.
    pub most_rows: usize,
}

impl Products {
    /// Every matrix, with the most tokens that come with it.
    pub fn sizes(&self) -> impl Iterator<Item = ([usize; 2], usize)> {
        let most = |tokens: usize| tokens.min(ProductChoice::MOST_TOKENS);
        let layers = self
            .matrices
            .iter()
            .map(move |m| (*m, most(self.most_tokens)));
        let rows = self.most_rows.min(self.most_tokens);
        layers.chain(self.head.map(|head| (head, most(rows))))
    }

    /// The classes that come, and the numbers of tokens that they are timed with.
    pub(super) fn classes(&self) -> impl Iterator<Item = (usize, usize)> {
        let classes = ProductChoice::CLASSES.into_iter().enumerate();
        classes.filter_map(|(class, tokens)| {
            Some((class, timed_with(class, tokens, self.most_tokens)?))
        })
    }

    /// What is timed in a class of so many `tokens`: the matrices of a layer, and the output
    /// projection, each with the tokens that it is multiplied with, and how often a step has them.
    pub(super) fn timed(
        &self,
        class: usize,
        tokens: usize,
    ) -> [(Vec<[usize; 2]>, usize, usize); 2] {
        let rows = timed_with(class, tokens, self.most_rows);
        let head = self.head.filter(|_| rows.is_some());
        [
            (self.matrices.clone(), tokens, self.layers),
            (head.into_iter().collect(), rows.unwrap_or(0), 1),
        ]
    }

    /// What is looked at before a kernel is taken in a class: each matrix with numbers of tokens.
    pub(super) fn compared(&self, class: usize) -> Vec<([usize; 2], Vec<usize>)> {
        let mut sizes: Vec<_> = self.sizes().collect();
        sizes.sort_unstable();
        sizes.dedup();
        let edges = |most: usize| {
            let mut edges: Vec<usize> = COMPARED.into_iter().chain([most]).collect();
            edges.retain(|tokens| {
                (FEWEST..=most).contains(tokens) && ProductChoice::class(*tokens) == class
            });
            edges.sort_unstable();
            edges.dedup();
            edges
        };
        let sizes = sizes
            .into_iter()
            .map(|(matrix, most)| (matrix, edges(most)));
        sizes.filter(|(_, edges)| !edges.is_empty()).collect()
    }

    /// A part of [`Self::compared`] that takes no time, for what was compared before.
    pub(super) fn looked_at(&self, class: usize) -> Vec<([usize; 2], Vec<usize>)> {
        let compared = self.compared(class).into_iter();
        compared
            .map(|(matrix, tokens)| {
                let some = [
                    tokens[0],
                    tokens[tokens.len() / 2],
                    tokens[tokens.len() - 1],
                ];
                (few_rows(matrix), some.to_vec())
            })
            .collect()
    }
}

/// The tokens that a class is timed with where there are `most`; `None` where they are in a class
/// below.
fn timed_with(class: usize, tokens: usize, most: usize) -> Option<usize> {
    let tokens = tokens.min(most);
    (tokens >= FEWEST && ProductChoice::class(tokens) == class).then_some(tokens)
}

/// The same matrix with few rows, of the same remainder.
pub(super) fn few_rows([input, output]: [usize; 2]) -> [usize; 2] {
    [input, output.min(FEW_ROWS + output % ALIGNED)]
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn products(most_tokens: usize) -> Products {
        Products {
            matrices: vec![[64, 192], [96, 700], [64, 192]],
            layers: 3,
            head: Some([64, 5001]),
            dtype: DType::F32,
            most_tokens,
            most_rows: 40,
        }
    }

    #[test]
    fn only_numbers_of_tokens_that_come_are_timed() {
        let timed = |most| products(most).classes().collect::<Vec<_>>();
        assert_eq!(timed(8), []);
        assert_eq!(timed(9), [(0, 9)]);
        assert_eq!(timed(100), [(0, 64)]);
        assert_eq!(timed(200), [(0, 64), (1, 200)]);
        assert_eq!(timed(576), [(0, 64), (1, 512)]);
        assert_eq!(timed(1025), [(0, 64), (1, 512), (2, 1025)]);
        assert_eq!(timed(9000), [(0, 64), (1, 512), (2, 2048)]);
    }

    #[test]
    fn a_step_has_its_layers_and_the_output_projection_of_fewer_tokens() {
        let products = products(600);
        let layers = |tokens| (products.matrices.clone(), tokens, 3);
        assert_eq!(
            products.timed(0, 64),
            [layers(64), (vec![[64, 5001]], 40, 1)]
        );
        assert_eq!(products.timed(1, 512), [layers(512), (vec![], 0, 1)]);
    }

    #[test]
    fn a_kernel_is_compared_in_whole_matrices_on_both_sides_of_where_tilings_change() {
        let compared = products(600).compared(1);
        let tokens = vec![129, 256, 300, 512, 600];
        assert_eq!(
            compared,
            [[64, 192], [96, 700]].map(|m| (m, tokens.clone()))
        );
        let decode = products(600).compared(0);
        assert_eq!(decode[0], ([64, 192], COMPARED[..10].to_vec()));
        assert_eq!(decode[1], ([64, 5001], vec![9, 16, 17, 32, 33, 40]));
        let few = products(12).compared(0);
        assert_eq!(few.len(), 3);
        assert!(few.iter().all(|(_, tokens)| *tokens == [9, 12]));
        // More are not computed by what was chosen.
        let all = products(5000);
        assert_eq!(all.compared(2)[0].1, [1025, 2048]);
        assert!(
            all.sizes()
                .all(|(_, most)| most <= ProductChoice::MOST_TOKENS)
        );
    }

    #[test]
    fn what_was_compared_before_is_looked_at_in_few_rows() {
        let looked_at = products(600).looked_at(1);
        let right = [[64, 192], few_rows([96, 700])].map(|m| (m, vec![129, 300, 600]));
        assert_eq!(looked_at, right);
        // What is left out of its rows changes nothing for a tiling.
        for output in [192, 513, 700, 1024, 16_384, 28_672, 151_937] {
            let [_, rows] = few_rows([64, output]);
            assert!(rows < 2 * FEW_ROWS && rows <= output);
            assert!(rows == output || rows % ALIGNED == output % ALIGNED);
        }
    }
}

//! The sizes of a model's matrix multiplications: which of them are timed, and which are compared
//! before a kernel is used.

use burn::tensor::DType;

use crate::ProductChoice;

/// The fewest tokens for which there is a choice of kernels. Fewer tokens have a kernel of their
/// own.
pub(super) const FEWEST: usize = 9;
/// Numbers of tokens with which kernels are compared. They lie on both sides of each change of
/// tiling, and some are divisible by no tile. The tiling of Hearth's kernel changes above 16 and 32
/// tokens. cubek's tilings change where the number of tokens exceeds four times the height of a
/// cooperative matrix, the height that the subgroups compute at once, or a quarter of the rows.
const COMPARED: [usize; 17] = [
    9, 16, 17, 32, 33, 48, 64, 65, 100, 128, 129, 256, 300, 512, 1000, 1025, 2048,
];
/// Rows of a matrix in a brief comparison.
const FEW_ROWS: usize = 512;
/// Tilings depend on the number of rows modulo this. A brief comparison keeps the remainder.
const ALIGNED: usize = 256;

/// The matrix multiplications of a model. Chosen kernels are used for these sizes and no others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Products {
    /// Columns and rows of each matrix of a layer.
    pub matrices: Vec<[usize; 2]>,
    pub layers: usize,
    /// Columns and rows of the output projection.
    pub head: Option<[usize; 2]>,
    pub dtype: DType,
    /// The most tokens of a step.
    pub most_tokens: usize,
    /// The most tokens of a step for which the output projection is computed.
    pub most_rows: usize,
}

impl Products {
    /// Every matrix, with the most tokens that it is multiplied with.
    pub fn sizes(&self) -> impl Iterator<Item = ([usize; 2], usize)> {
        let most = |tokens: usize| tokens.min(ProductChoice::MOST_TOKENS);
        let layers = self
            .matrices
            .iter()
            .map(move |m| (*m, most(self.most_tokens)));
        let rows = self.most_rows.min(self.most_tokens);
        layers.chain(self.head.map(|head| (head, most(rows))))
    }

    /// The classes that occur, each with the number of tokens to time it with.
    pub(super) fn classes(&self) -> impl Iterator<Item = (usize, usize)> {
        let classes = ProductChoice::CLASSES.into_iter().enumerate();
        classes.filter_map(|(class, tokens)| {
            Some((class, timed_with(class, tokens, self.most_tokens)?))
        })
    }

    /// The products to time in a class with so many `tokens`: the matrices of a layer and the
    /// output projection, each with its number of tokens and the number of times that a step runs
    /// it.
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

    /// The products to compare before a kernel is used in a class: each matrix, with its numbers of
    /// tokens.
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

    /// A small sample of [`Self::compared`], for kernels that were compared at an earlier start.
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

/// The number of tokens to time a class with if a step has at most `most`; `None` if no step
/// reaches the class.
fn timed_with(class: usize, tokens: usize, most: usize) -> Option<usize> {
    let tokens = tokens.min(most);
    (tokens >= FEWEST && ProductChoice::class(tokens) == class).then_some(tokens)
}

/// The same matrix with few rows, and with the same remainder of rows.
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
    fn only_classes_that_occur_are_timed() {
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
    fn a_step_times_its_layers_and_the_output_projection_of_fewer_tokens() {
        let products = products(600);
        let layers = |tokens| (products.matrices.clone(), tokens, 3);
        assert_eq!(
            products.timed(0, 64),
            [layers(64), (vec![[64, 5001]], 40, 1)]
        );
        assert_eq!(products.timed(1, 512), [layers(512), (vec![], 0, 1)]);
    }

    #[test]
    fn a_kernel_is_compared_on_both_sides_of_each_change_of_tiling() {
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
        // More tokens do not use the chosen kernels.
        let all = products(5000);
        assert_eq!(all.compared(2)[0].1, [1025, 2048]);
        assert!(
            all.sizes()
                .all(|(_, most)| most <= ProductChoice::MOST_TOKENS)
        );
    }

    #[test]
    fn kernels_of_an_earlier_start_are_compared_in_few_rows() {
        let looked_at = products(600).looked_at(1);
        let right = [[64, 192], few_rows([96, 700])].map(|m| (m, vec![129, 300, 600]));
        assert_eq!(looked_at, right);
        // The tiling does not depend on the rows that are left out.
        for output in [192, 513, 700, 1024, 16_384, 28_672, 151_937] {
            let [_, rows] = few_rows([64, output]);
            assert!(rows < 2 * FEW_ROWS && rows <= output);
            assert!(rows == output || rows % ALIGNED == output % ALIGNED);
        }
    }
}

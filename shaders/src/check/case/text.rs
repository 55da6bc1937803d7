//! The sizes of a case as text.

use std::fmt;

use super::Case;
use crate::Summation;

/// Writes the sizes, without the name of the kernel.
impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Case::Linear {
                tokens,
                input,
                output,
                gated,
                summation,
                ..
            } => {
                write!(f, "{tokens} x {input} by {input} x ")?;
                write_rows(f, *output, gated.is_some())?;
                write_order(f, *summation)
            }
            Case::PackedLinear {
                format,
                tokens,
                input,
                output,
                gated,
                summation,
                ..
            } => {
                write!(f, "{tokens} x {input} by {input} x ")?;
                write_rows(f, *output, gated.is_some())?;
                write!(f, " in {format:?}")?;
                write_order(f, *summation)
            }
            Case::PackedEmbed {
                format,
                tokens,
                vocab,
                hidden,
            } => write!(f, "{tokens} rows of {vocab} x {hidden} in {format:?}"),
            Case::Embed {
                tokens,
                vocab,
                hidden,
            } => write!(f, "{tokens} rows of {vocab} x {hidden}"),
            Case::LowRank {
                tokens,
                input,
                slices,
                rank,
            } => write!(f, "{tokens} x {input} by rank {rank} to {slices:?}"),
            Case::ChooseExperts {
                tokens,
                experts,
                routing,
            } => write!(f, "{tokens} x {} of {experts}", routing.top),
            Case::MixExperts { tokens, sizes } => {
                let (hidden, width) = (sizes.hidden, sizes.width);
                write!(
                    f,
                    "{tokens} x {} of {} experts of ",
                    sizes.top, sizes.experts
                )?;
                write!(f, "{hidden} x {width}")?;
                match sizes.format {
                    Some(format) => write!(f, " in {format:?}"),
                    None => Ok(()),
                }
            }
            Case::RmsNorm { tokens, hidden, .. } | Case::AddRmsNorm { tokens, hidden, .. } => {
                write!(f, "{tokens} x {hidden}")
            }
            Case::Gate {
                tokens,
                inner,
                activation,
            } => write!(f, "{tokens} x 2 * {inner}, {activation:?}"),
            Case::ScaleAndCap {
                rows,
                vocab,
                capped,
            } => {
                write!(f, "{rows} x {vocab}")?;
                f.write_str(if *capped { ", bounded" } else { "" })
            }
            Case::RopeAndStore { tokens, layout, .. }
            | Case::NormProjections { tokens, layout, .. } => write!(
                f,
                "{tokens} tokens, {}/{} heads of {}",
                layout.heads, layout.kv_heads, layout.head_dim
            ),
            Case::Attention {
                sequences,
                layout,
                summation,
                ..
            } => {
                let tokens: usize = sequences.iter().map(|(_, new)| new).sum();
                let longest = sequences.iter().map(|(context, _)| context).max();
                write!(
                    f,
                    "{tokens} tokens, contexts to {}, {}/{} heads of {}",
                    longest.unwrap_or(&0),
                    layout.heads,
                    layout.kv_heads,
                    layout.head_dim
                )?;
                write_order(f, *summation)
            }
            Case::Sample { rows, vocab } => {
                write!(f, "{rows} x {vocab}")
            }
        }
    }
}

fn write_rows(f: &mut fmt::Formatter<'_>, output: usize, gated: bool) -> fmt::Result {
    match gated {
        true => write!(f, "2 * {output}, gated"),
        false => write!(f, "{output}"),
    }
}

fn write_order(f: &mut fmt::Formatter<'_>, summation: Summation) -> fmt::Result {
    match summation {
        Summation::Fastest => Ok(()),
        Summation::Fixed => f.write_str(", in a fixed order"),
    }
}

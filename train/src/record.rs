//! The record of a training run, kept beside the checkpoint for the model card.

use serde::{Deserialize, Serialize};

use crate::options::TrainOptions;

/// File name of a [`Record`].
pub const RECORD: &str = "training.json";

/// A point of the loss curve.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Point {
    pub step: u64,
    pub tokens: u64,
    pub loss: f64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Run {
    pub parameters: usize,
    pub steps: u64,
    pub tokens: u64,
    pub seconds: f64,
    pub curve: Vec<Point>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    pub options: TrainOptions,
    pub run: Run,
}

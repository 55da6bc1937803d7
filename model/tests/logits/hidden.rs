//! Hidden states.

use hearth_forward::{ForwardBatch, SequenceSpan};
use hearth_model::device::{Api, DeviceSpec};
use safetensors::SafeTensors;

use super::golden::{
    CPU, Golden, assert_close, goldens, gpu_goldens, load, open, slot, wgpu_devices,
};

/// Hidden states are the input of the output projection: projected, scaled and bounded here, in f64,
/// they give the golden's logits.
fn hidden_states_project_to_the_logits(device: DeviceSpec, goldens: Vec<Golden>) {
    for golden in goldens {
        let mut decoder = load(&golden, device);
        let hidden_size = decoder.report().hidden_size;
        let length = golden.prompt.len();
        let slots: Vec<u32> = (0..length).map(slot).collect();
        let rows: Vec<u32> = (0..length as u32).step_by(3).collect();
        let batch = ForwardBatch {
            tokens: golden.prompt.clone(),
            positions: (0..length as u32).collect(),
            write_slots: slots.clone(),
            sequences: vec![SequenceSpan {
                tokens: length as u32,
                context: length as u32,
                first_slot: 0,
            }],
            slot_table: slots,
            logit_rows: vec![length as u32 - 1],
            hidden_rows: rows.clone(),
            ..ForwardBatch::default()
        };
        let output = decoder
            .forward(&batch, &mut Vec::new)
            .expect("a forward pass");
        let name = golden.dir.display().to_string();
        let last = &golden.prefill[(length - 1) * golden.vocab..];
        assert_close(&format!("{device} {name}"), &output.logits, last);
        assert_eq!(output.hidden.len(), rows.len() * hidden_size);
        let projection = output_projection(&golden);
        let config = open(&golden).config;
        let divisor = f64::from(config.logit_divisor);
        let cap = config.logit_cap.map(f64::from);
        for (row, hidden) in rows.iter().zip(output.hidden.chunks(hidden_size)) {
            let logits: Vec<f32> = projection
                .chunks(hidden_size)
                .map(|weights| {
                    let terms = weights.iter().zip(hidden);
                    let sum: f64 = terms.map(|(w, h)| f64::from(*w) * f64::from(*h)).sum();
                    let logit = sum / divisor;
                    cap.map_or(logit, |cap| cap * (logit / cap).tanh()) as f32
                })
                .collect();
            let want = &golden.prefill[*row as usize * golden.vocab..][..golden.vocab];
            assert_close(&format!("{device} {name} hidden row {row}"), &logits, want);
        }
    }
}

/// `[vocab, hidden]`, read from the checkpoint by itself.
fn output_projection(golden: &Golden) -> Vec<f32> {
    let files = std::fs::read_dir(&golden.dir).expect("a golden");
    let files = files.map(|entry| entry.expect("an entry").path());
    let mut tied = None;
    for path in files.filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.ends_with(".safetensors") && name != "golden.safetensors"
    }) {
        let bytes = std::fs::read(path).expect("weights");
        let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
        for name in file.names() {
            let found = name.ends_with("lm_head.weight");
            if found || name.ends_with("embed_tokens.weight") {
                let tensor = file.tensor(name).expect(name);
                let data = tensor.data();
                let values: Vec<f32> = match tensor.dtype() {
                    safetensors::Dtype::F32 => data
                        .chunks_exact(4)
                        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                        .collect(),
                    safetensors::Dtype::BF16 => data
                        .chunks_exact(2)
                        .map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32())
                        .collect(),
                    safetensors::Dtype::F16 => data
                        .chunks_exact(2)
                        .map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32())
                        .collect(),
                    other => panic!("{name} is {other:?}"),
                };
                if found {
                    return values;
                }
                tied = Some(values);
            }
        }
    }
    tied.expect("a checkpoint has embeddings")
}

#[test]
fn hidden_states_are_what_the_output_projection_reads() {
    hidden_states_project_to_the_logits(CPU, goldens());
    if let Some(device) = wgpu_devices(Api::Vulkan) {
        hidden_states_project_to_the_logits(device, gpu_goldens());
    }
}

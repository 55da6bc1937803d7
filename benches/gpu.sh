#!/bin/sh
# Correctness, then timings, on the GPUs of this machine.
#
#   benches/gpu.sh [OUT]
#
# With cargo at hand the GPU tests are built and run; on a bare machine put a built
# `hearth` in $HEARTH_BIN and the test executables in $HEARTH_GPU_TESTS (space-separated).
# A failing test stops the script: timings of wrong results are worth nothing.
set -eu
out=${1:-.}
bin=${HEARTH_BIN:-target/release/hearth}
models=${HEARTH_BENCH_MODELS:-benches/models}

"$bin" devices | tee "$out/devices.txt"

if [ -n "${HEARTH_GPU_TESTS:-}" ]; then
    for test in $HEARTH_GPU_TESTS; do
        "$test" --test-threads 1 cuda vulkan spirv wgsl
    done 2>&1 | tee "$out/tests.txt"
    # `tee` hides the status of what it reads.
    ! grep -qE '^test result: FAILED|panicked' "$out/tests.txt"
else
    cargo test --release --workspace --test ops --test logits
fi

for device in ${HEARTH_BENCH_DEVICES:-cuda vulkan}; do
    for dtype in ${HEARTH_BENCH_DTYPES:-bf16 f16 f32}; do
        for model in "$models"/*/; do
            echo "== $device $dtype $(basename "$model")"
            "$bin" bench --model "$model" --load-format dummy --device "$device" --dtype "$dtype" \
                --prompt-tokens 512 --decode-tokens 128 --batch 1,8,32 --repeats 3 ||
                echo "not run: $device does not take $dtype"
        done
    done
done 2>&1 | tee "$out/bench.txt"

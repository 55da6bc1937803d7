#!/bin/sh
# Hearth beside llama.cpp on this machine's CPU, alternating, the same shapes.
#
#   LLAMA_BENCH=.../llama-bench benches/cpu.sh MODEL_DIR GGUF_F32 GGUF_BF16 [ROUNDS]
#
# MODEL_DIR is a checkpoint in Hugging Face format (random weights will do), the GGUF
# files are the same shapes. Each round runs one program at a time.
set -eu
hearth=${HEARTH_BIN:-target/release/hearth}
model=$1 rounds=${4:-3} threads=$(nproc)

for round in $(seq "$rounds"); do
    for dtype in f32 bf16; do
        gguf=$2
        [ "$dtype" = bf16 ] && gguf=$3
        echo "== round $round $dtype llama.cpp"
        "$LLAMA_BENCH" -m "$gguf" -t "$threads" -p 512 -n 64 -r 1 -o md | grep -E 'pp|tg'
        echo "== round $round $dtype hearth"
        "$hearth" bench --model "$model" --device cpu --dtype "$dtype" \
            --prompt-tokens 512 --decode-tokens 64 --batch 1,8 --repeats 1
    done
done

#!/bin/sh
# Measures Hearth beside llama-server over HTTP on this machine's CPU, in turns, with the same shapes: one
# client, eight clients, and eight clients whose prompts share 512 tokens.
#
#   LLAMA_SERVER=.../llama-server benches/http.sh MODEL_DIR GGUF [ROUNDS] [FLAGS]
#
# MODEL_DIR has a config.json in Hugging Face format (the weights are random), and the GGUF file has the same
# shapes. FLAGS are Hearth's flags for the format of the GGUF file, for example "--quantization int8" for
# Q8_0. It prints a line of JSON for each run, and each server's peak memory.
set -eu
hearth=${HEARTH_BIN:-target/release/hearth}
load=${HEARTH_LOAD:-target/release/hearth-load}
model=$1 gguf=$2 rounds=${3:-2} flags=${4:-} threads=$(nproc) port=8931
url=http://127.0.0.1:$port

# serve NAME READY COMMAND...: starts the server, loads it when the route READY answers, and stops it.
serve() {
    name=$1 ready=$2
    shift 2
    "$@" >/tmp/http-bench-"$name".log 2>&1 &
    server=$!
    for _ in $(seq 600); do
        curl -sf "$url/$ready" >/dev/null && break
        sleep 0.1
    done
    for shape in "1 8 128 0 48" "8 32 128 0 48" "8 32 32 512 16"; do
        # shellcheck disable=SC2086
        set -- $shape
        printf '%s, %s clients, %s requests, %s + %s in, %s out: ' "$name" "$1" "$2" "$4" "$3" "$5"
        "$load" --url "$url" --json --concurrency "$1" --requests "$2" --prompt-tokens "$3" \
            --shared-prefix "$4" --output-tokens "$5" || true
    done
    grep VmHWM "/proc/$server/status" | sed "s/^/$name, /"
    kill "$server"
    wait "$server" 2>/dev/null || true
}

for round in $(seq "$rounds"); do
    echo "== round $round"
    serve llama-server health "$LLAMA_SERVER" -m "$gguf" -t "$threads" -c 8192 -np 8 --port "$port" --no-webui
    # shellcheck disable=SC2086
    serve hearth ready "$hearth" serve --model "$model" --load-format dummy --device cpu --dtype bf16 \
        --kv-tokens 8192 --port "$port" $flags
done

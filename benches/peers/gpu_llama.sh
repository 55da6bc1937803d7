#!/bin/bash
# Builds llama.cpp for CUDA from the source package of llama-cpp-python, which contains it, and measures it
# for gpu.sh.
#
#   gpu_llama.sh build SDIST.tar.gz BUILD
#   gpu_llama.sh bench BUILD MODEL_DIR CONTEXT DECODE PREFILL MANY     prints llama-bench's JSON, then
#                                                                   llama-batched-bench's JSON lines
set -eu
here=$(cd "$(dirname "$0")" && pwd)
case $1 in
build)
    sdist=$2 build=$3
    [ -x "$build/bin/llama-batched-bench" ] && exit 0
    mkdir -p "$build/source"
    [ -e "$build/unpacked" ] || { tar xzf "$sdist" -C "$build/source" --strip-components 1 && touch "$build/unpacked"; }
    # This builds the attention kernels that llama.cpp builds by default.
    cmake -S "$build/source/vendor/llama.cpp" -B "$build" -DCMAKE_BUILD_TYPE=Release -DGGML_CUDA=ON \
        -DCMAKE_CUDA_ARCHITECTURES=native -DBUILD_SHARED_LIBS=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_WEBUI=OFF
    cmake --build "$build" -j "$(nproc)" --target llama-bench llama-batched-bench ;;
bench)
    build=$2 model=$3 context=$4 decode=$5 prefill=$6 many=$7
    file=$build/$(basename "$model").gguf
    [ -e "$file" ] || python3 "$here/gpu_gguf.py" "$model" "$file"
    "$build/bin/llama-bench" -m "$file" -ngl 99 -fa 1 -r 3 -o json -p "$prefill" -n 0
    "$build/bin/llama-bench" -m "$file" -ngl 99 -fa 1 -r 3 -o json -p 0 -n "$decode" -d "$context"
    "$build/bin/llama-batched-bench" -m "$file" -ngl 99 -fa on --output-format jsonl -c $(((context + decode) * many)) \
        -b 2048 -npp "$context" -ntg "$decode" -npl "$many" ;;
esac

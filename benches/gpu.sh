#!/bin/bash
# Correctness, then timings, on the GPU of this machine: all that a table of results needs,
# in one call of at most ten minutes.
#
#   benches/gpu.sh [OUT]                 where cargo has built (cargo build --release --workspace)
#   benches/gpu.sh --pack FILE.tar.xz    packs what a bare machine needs: this script, stripped
#                                        binaries, models' shapes, goldens
#   tar xJf FILE.tar.xz && hearth-gpu/benches/gpu.sh [OUT]       there
#
# The bare machine has Python, a driver, NVRTC with CUDA's headers, and a Vulkan loader if Vulkan
# is to be measured; with torch it also runs transformers beside. No network is used.
#
#   HEARTH_GPU_DEVICES   "cuda vulkan" by default; the first is the one of the full table
#   HEARTH_GPU_SIZE      small: tiny shapes, to try this script out on the CPU and on lavapipe
#   HEARTH_GPU_SECONDS   when to end, 570 by default
#   HEARTH_GPU_LLAMA     llama_cpp_python-*.tar.gz, its sdist: llama.cpp is built for CUDA beside
#                        all else, with its gguf-py, and measured if that is done in time; what is
#                        built stays in HEARTH_GPU_LLAMA_BUILD, where the next call goes on
#
# Every step ends within its time, and is noted in OUT/steps.txt: what fails or comes too late
# loses no other step's result. A device whose kernels are wrong is not timed: timings of wrong
# results are worth nothing. The status is 1 if a kernel or a golden was wrong, or not all were
# looked at in time.
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
hearth=${HEARTH_BIN:-$root/target/release/hearth}
load=${HEARTH_LOAD:-$root/target/release/hearth-load}

if [ "${1:-}" = --pack ]; then
    set -e
    packed=$(mktemp -d)
    trap 'rm -rf "$packed"' EXIT
    mkdir -p "$packed/hearth-gpu/target/release" "$packed/hearth-gpu/model"
    strip -o "$packed/hearth-gpu/target/release/hearth" "$hearth"
    strip -o "$packed/hearth-gpu/target/release/hearth-load" "$load"
    mkdir -p "$packed/hearth-gpu/benches/peers"
    cp -r "$here"/gpu* "$here/models" "$packed/hearth-gpu/benches"
    cp "$here"/peers/gpu_* "$packed/hearth-gpu/benches/peers"
    # GGUF files are tested on the CPU.
    cp -r "$root/model/goldens" "$packed/hearth-gpu/model/goldens"
    rm -rf "$packed/hearth-gpu/model/goldens/gguf"
    tar -C "$packed" -cf - hearth-gpu | xz -T0 -9 >"$2"
    ls -l "$packed/hearth-gpu/target/release" "$2"
    most=$((40 * 1000 * 1000)) size=$(wc -c <"$2")
    [ "$size" -le "$most" ] || { echo "$2 has $size bytes, more than $most" && exit 1; }
    exit 0
fi

out=${1:-.}
mkdir -p "$out"
out=$(cd "$out" && pwd)
devices=${HEARTH_GPU_DEVICES:-cuda vulkan}
main=${devices%% *}
if [ "${HEARTH_GPU_SIZE:-full}" = small ]; then
    # A rasteriser takes minutes for all goldens, and the CPU for the kernels of a large model.
    model=$root/model/goldens/llama-llama3-tied goldens=$out/goldens cases=3 context=24 decode=8 many=2 prefill=32 prefill_batch=2
    clients=4 requests=8 prompt=16 output=4 torch_steps=4 torch_device=cpu
    mkdir -p "$goldens" && cp -r "$model" "$goldens"
else
    model=$here/models/llama-1b goldens=$root/model/goldens cases=75 context=960 decode=128 many=64 prefill=2048 prefill_batch=4
    clients=256 requests=512 prompt=512 output=128 torch_steps=64 torch_device=cuda
fi
started=$(date +%s)
left() { echo $((${HEARTH_GPU_SECONDS:-570} - $(date +%s) + started)); }
: >"$out/steps.txt"
unwell=0

# Of 16 bits, what a device has: as many bytes are read.
dtype_of() {
    case ${HEARTH_GPU_SIZE:-full}-$1 in
    small-*) echo f32 ;;
    *-cuda* | *-cpu*) echo bf16 ;;
    *) echo f16 ;;
    esac
}

note() {
    printf '%-30s %s\n' "$1" "$2" | tee -a "$out/steps.txt"
}

# step NAME SECONDS COMMAND...: leaves what it prints in OUT/NAME.json, and what it says in
# OUT/NAME.log.
step() {
    local name=$1 most=$2 remaining begun status
    shift 2
    remaining=$(left)
    [ "$remaining" -ge "$most" ] || most=$remaining
    if [ "$most" -lt 3 ]; then
        note "$name" "not run: no time left"
        return 1
    fi
    begun=$(date +%s)
    timeout -k 5 "$most" "$@" >"$out/$name.json" 2>"$out/$name.log"
    status=$?
    local took=$(($(date +%s) - begun))
    case $status in
    0) note "$name" "ok, $took s" ;;
    124 | 137) note "$name" "not run: longer than $most s" ;;
    *) note "$name" "not run, $took s: $(grep -v '^ *$' "$out/$name.log" | tail -n 1 | cut -c -200)" ;;
    esac
    return $status
}

# What a run of the model has; trying kernels takes longer.
within=60

# bench NAME DEVICE FLAGS...
bench() {
    local name=$1 device=$2
    shift 2
    # shellcheck disable=SC2086
    step "$name" "$within" "$hearth" bench --model "$model" --load-format dummy --device "$device" \
        --dtype "$(dtype_of "$device")" ${autotune---no-autotune} --repeats 2 --json "$@"
}

# decode AS DEVICE BATCH FLAGS...
decode() {
    bench "decode-$3-$1" "$2" --prompt-tokens "$context" --decode-tokens "$decode" --batch "$3" "${@:4}"
}

# prefill AS DEVICE FLAGS...
prefill() {
    bench "prefill-$1" "$2" --prompt-tokens "$prefill" --prefill-chunk "$prefill" --decode-tokens 4 \
        --batch "$prefill_batch" "${@:3}"
}

# Whether every kernel and every golden is right on a device; also how fast the kernels are.
well() {
    local speed=
    [ "${HEARTH_GPU_SIZE:-full}-$1" != small-cpu ] || speed=--no-speed
    # shellcheck disable=SC2086
    step "doctor-$1" 120 "$hearth" doctor --device "$1" --cases "$cases" --goldens "$goldens" $speed --json
    local status=$?
    python3 "$here/gpu_table.py" doctor "$out/doctor-$1.json"
    [ "$status" -ne 0 ] || return 0
    if grep -q 'there is no such device\|cannot be used\|no device' "$out/doctor-$1.log"; then
        return 1
    fi
    unwell=1
    case $status in
    124 | 137)
        # What is timed is looked at once more in its own sizes, when the model is loaded.
        note "$1" "not all was looked at in time"
        return 0 ;;
    esac
    note "$1" "wrong: it is not timed"
    return 1
}

the_table() {
    python3 "$here/gpu_table.py" table "$out" "$main" "$model" "$context" "$decode" | tee "$out/table.md"
}
trap the_table EXIT

"$hearth" devices | tee "$out/devices.txt"
llama_build=${HEARTH_GPU_LLAMA_BUILD:-$out/llama-build}
if [ -n "${HEARTH_GPU_LLAMA:-}" ]; then
    # A session of its own, to be ended as one.
    setsid nice -n 19 "$here/peers/gpu_llama.sh" build "$HEARTH_GPU_LLAMA" "$llama_build" >"$out/llama-build.log" 2>&1 &
    llama=$!
    trap 'kill -- -$llama 2>/dev/null; the_table' EXIT
fi

timed=
if well "$main"; then
    timed=$main
    decode "$main" "$main" 1
    decode "$main" "$main" "$many"
    prefill "$main" "$main"
    for format in int4 int8; do
        decode "$main-$format" "$main" 1 --quantization "$format"
    done
fi
step peer 150 python3 "$here/peers/gpu_peer.py" "$model" "$context" "$torch_steps" "$prefill" "$prefill_batch" \
    "$many" "$torch_device"
if [ -n "$timed" ]; then
    step http 120 python3 "$here/gpu_http.py" "$hearth" "$load" "$model" "$main" "$(dtype_of "$main")" "$clients" \
        "$requests" "$prompt" "$output" "$out/serve.log"
fi
for device in ${devices#"$main"}; do
    if well "$device"; then
        timed="$timed $device"
        decode "$device" "$device" 1
        decode "$device" "$device" "$many"
        prefill "$device" "$device"
    fi
done
# What a fixed order costs is asked of one device.
case " $timed " in *" $main "*)
    decode "$main-deterministic" "$main" 1 --deterministic
    decode "$main-deterministic" "$main" "$many" --deterministic
    prefill "$main-deterministic" "$main" --deterministic ;;
esac
# As it is started usually: the first of each times kernels. Last, as some of those were never run
# anywhere, so that they take no other result with them.
case " $timed " in *" $main "*)
    autotune= within=120 decode "$main-tuned" "$main" "$many"
    autotune= within=240 prefill "$main-tuned" "$main" ;;
esac
if [ -n "${HEARTH_GPU_LLAMA:-}" ]; then
    # It is waited for as long as what comes after it needs no time.
    while kill -0 "$llama" 2>/dev/null && [ "$(left)" -gt 100 ]; do sleep 1; done
    if kill -0 "$llama" 2>/dev/null; then
        note llama "not run: not built in time; $llama_build stays for the next call"
    else
        step llama 90 "$here/peers/gpu_llama.sh" bench "$llama_build" "$model" "$context" "$decode" "$prefill" "$many"
    fi
fi
# More cases as long as there is time.
[ "${HEARTH_GPU_SIZE:-full}" = small ] && rounds=1 || rounds=12
for round in $(seq "$rounds"); do
    for device in $timed; do
        [ "$(left)" -gt 40 ] || break
        step "more-$round-$device" 120 "$hearth" doctor --device "$device" --cases "$cases" --no-speed --json
        # 1 is what it says of a wrong kernel; it may also have been too slow.
        [ $? -ne 1 ] || unwell=1
    done
done
note "all" "$(($(date +%s) - started)) s"
exit "$unwell"

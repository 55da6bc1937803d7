#!/bin/bash
# Checks correctness and then measures speed on the GPU of this machine: one call of at most ten minutes gives
# all figures of a table of results.
#
#   benches/gpu.sh [OUT]                 on a machine with a build (cargo build --release --workspace)
#   benches/gpu.sh --pack FILE.tar.xz    packs the files for a machine without a build: this script,
#                                        stripped binaries, the shapes of models, goldens
#   tar xJf FILE.tar.xz && hearth-gpu/benches/gpu.sh [OUT]       on that machine
#
# The machine needs Python, a driver, NVRTC with CUDA's headers, and a Vulkan loader if Vulkan is to be
# measured. If it has torch, transformers is measured too. No network is used.
#
#   HEARTH_GPU_DEVICES   "cuda vulkan" by default; the first device gets the full table
#   HEARTH_GPU_SIZE      small: tiny shapes, to try this script out on the CPU and on lavapipe
#   HEARTH_GPU_SECONDS   the time limit of the whole script, 570 by default
#   HEARTH_GPU_LLAMA     llama_cpp_python-*.tar.gz, a source package: llama.cpp is built from it for CUDA
#                        beside everything else, and measured if the build is done in time. The build
#                        stays in HEARTH_GPU_LLAMA_BUILD, where the next call continues it
#
# Every step ends within its time limit, and is noted in OUT/steps.txt. A step that fails or takes too long
# does not affect the results of the others. A device whose kernels are wrong is not timed, because timings
# of wrong results are worth nothing. The exit status is 1 if a kernel or a golden was wrong, or if not all
# of them were checked in time.
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
    # All goldens take minutes on a rasteriser, and the kernels of a large model take minutes on the CPU.
    model=$root/model/goldens/llama-llama3-tied goldens=$out/goldens cases=3 context=24 decode=8 many=2 prefill=32 prefill_batch=2
    clients=4 requests=8 prompt=16 output=4 torch_steps=4 torch_device=cpu
    mkdir -p "$goldens" && cp -r "$model" "$goldens"
else
    model=$here/models/llama-1b goldens=$root/model/goldens cases=20 context=960 decode=128 many=64 prefill=2048 prefill_batch=4
    clients=256 requests=512 prompt=512 output=128 torch_steps=64 torch_device=cuda
fi
started=$(date +%s)
left() { echo $((${HEARTH_GPU_SECONDS:-570} - $(date +%s) + started)); }
: >"$out/steps.txt"
unwell=0

# Prints the 16-bit type that a device computes in: bf16 and f16 read the same number of bytes.
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

# step NAME SECONDS COMMAND...: runs the command, with its standard output in OUT/NAME.json and its standard
# error in OUT/NAME.log.
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

# Seconds that a run of the model may take; runs that try kernels get more.
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

# Checks that every kernel and every golden is right on a device, and measures the kernels' speed.
well() {
    local speed=
    [ "${HEARTH_GPU_SIZE:-full}-$1" != small-cpu ] || speed=--no-speed
    # NVRTC compiles hundreds of kernels: 40 cases without speed and goldens took 138 s on an H100.
    # shellcheck disable=SC2086
    step "doctor-$1" 300 "$hearth" doctor --device "$1" --cases "$cases" --goldens "$goldens" $speed --json
    local status=$?
    python3 "$here/gpu_table.py" doctor "$out/doctor-$1.json"
    [ "$status" -ne 0 ] || return 0
    if grep -q 'there is no such device\|cannot be used\|no device' "$out/doctor-$1.log"; then
        return 1
    fi
    unwell=1
    case $status in
    124 | 137)
        # The device may be timed: when the model is loaded, its kernels are checked once more in its sizes.
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
    # The build gets a session of its own, so that it can be ended as a whole.
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
# The cost of the fixed order is measured on one device.
case " $timed " in *" $main "*)
    decode "$main-deterministic" "$main" 1 --deterministic
    decode "$main-deterministic" "$main" "$many" --deterministic
    prefill "$main-deterministic" "$main" --deterministic ;;
esac
# These runs choose kernels as a normal start does, by timing them. They come last, because some of these
# kernels have never run anywhere and must not cost the results of other steps.
case " $timed " in *" $main "*)
    autotune= within=120 decode "$main-tuned" "$main" "$many"
    autotune= within=240 prefill "$main-tuned" "$main" ;;
esac
if [ -n "${HEARTH_GPU_LLAMA:-}" ]; then
    # The script waits for the build as long as enough time is left for the steps after it.
    while kill -0 "$llama" 2>/dev/null && [ "$(left)" -gt 100 ]; do sleep 1; done
    if kill -0 "$llama" 2>/dev/null; then
        note llama "not run: not built in time; $llama_build stays for the next call"
    else
        step llama 90 "$here/peers/gpu_llama.sh" bench "$llama_build" "$model" "$context" "$decode" "$prefill" "$many"
    fi
fi
# More random cases run for as long as there is time.
[ "${HEARTH_GPU_SIZE:-full}" = small ] && rounds=1 || rounds=12
for round in $(seq "$rounds"); do
    for device in $timed; do
        [ "$(left)" -gt 40 ] || break
        step "more-$round-$device" 120 "$hearth" doctor --device "$device" --cases "$cases" --no-speed --json
        # Status 1 means a wrong kernel; any other status may only mean that the step was too slow.
        [ $? -ne 1 ] || unwell=1
    done
done
note "all" "$(($(date +%s) - started)) s"
exit "$unwell"

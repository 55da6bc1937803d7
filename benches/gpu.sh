#!/bin/sh
# Correctness, then timings, on the GPU of this machine: all that a table of results needs,
# in one call of at most ten minutes.
#
#   benches/gpu.sh [OUT]                 where cargo has built (cargo build --release --workspace)
#   benches/gpu.sh --pack FILE.tar.xz    packs what a bare machine needs: this script, stripped
#                                        binaries, models' shapes, goldens
#   tar xJf FILE.tar.xz && hearth-gpu/benches/gpu.sh [OUT]       there
#
# The bare machine has a driver, NVRTC with CUDA's headers, and a Vulkan loader if Vulkan is to
# be measured; with Python and torch it also runs transformers beside. No network is used.
#
#   HEARTH_GPU_DEVICES   "cuda vulkan" by default; the first is the one of the full table
#   HEARTH_GPU_SIZE      small: tiny shapes, to try this script out on the CPU and on lavapipe
#
# A wrong kernel stops everything: timings of wrong results are worth nothing.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
hearth=${HEARTH_BIN:-$root/target/release/hearth}
load=${HEARTH_LOAD:-$root/target/release/hearth-load}

if [ "${1:-}" = --pack ]; then
    packed=$(mktemp -d)
    trap 'rm -rf "$packed"' EXIT
    mkdir -p "$packed/hearth-gpu/target/release" "$packed/hearth-gpu/model"
    strip -o "$packed/hearth-gpu/target/release/hearth" "$hearth"
    strip -o "$packed/hearth-gpu/target/release/hearth-load" "$load"
    cp -r "$here" "$packed/hearth-gpu/benches"
    # GGUF files are tested on the CPU.
    cp -r "$root/model/goldens" "$packed/hearth-gpu/model/goldens"
    rm -rf "$packed/hearth-gpu/model/goldens/gguf"
    tar -C "$packed" -cf - hearth-gpu | xz -T0 -9 >"$2"
    ls -l "$packed/hearth-gpu/target/release" "$2"
    exit 0
fi

out=${1:-.}
mkdir -p "$out"
devices=${HEARTH_GPU_DEVICES:-cuda vulkan}
main=${devices%% *}
if [ "${HEARTH_GPU_SIZE:-full}" = small ]; then
    model=$here/models/smol-135m dtype=f32 cases=3 context=24 decode=8 batches=1,2 prefill=32
    prefill_batch=2 clients=4 requests=8 prompt=16 output=4 torch_steps=4 per_step=240
else
    model=$here/models/llama-1b dtype=bf16 cases=1000 context=960 decode=128 batches=1,64 prefill=2048
    prefill_batch=4 clients=256 requests=512 prompt=512 output=128 torch_steps=64 per_step=120
fi
started=$(date +%s)
say() { printf '\n== %s s: %s\n' "$(($(date +%s) - started))" "$*"; }

say "devices"
"$hearth" devices | tee "$out/devices.txt"

for device in $devices; do
    say "every kernel and every golden on $device"
    # `tee` would hide the status.
    if ! timeout "$per_step" "$hearth" doctor --device "$device" --cases "$cases" \
        --goldens "$root/model/goldens" --json >"$out/doctor-$device.json" 2>"$out/doctor-$device.log"; then
        cat "$out/doctor-$device.log"
        [ "$device" != "$main" ] && grep -q 'there is no such device\|cannot be used' "$out/doctor-$device.log" && continue
        echo "$device is wrong, or did not answer in time: nothing is timed"
        exit 1
    fi
    python3 "$here/gpu_table.py" doctor "$out/doctor-$device.json"

    # What a fixed order costs is asked of one device.
    orders=fastest
    [ "$device" = "$main" ] && orders="fastest deterministic"
    for order in $orders; do
        as=$device flag=
        [ "$order" = deterministic ] && as=$device-deterministic flag=--deterministic
        say "decoding and prefill on $as"
        timeout "$per_step" "$hearth" bench --model "$model" --load-format dummy --device "$device" \
            --dtype "$dtype" --prompt-tokens "$context" --decode-tokens "$decode" --batch "$batches" \
            --repeats 2 $flag --json >"$out/decode-$as.json" || echo "not run on $as in $dtype"
        timeout "$per_step" "$hearth" bench --model "$model" --load-format dummy --device "$device" \
            --dtype "$dtype" --prompt-tokens "$prefill" --prefill-chunk "$prefill" --decode-tokens 4 \
            --batch "$prefill_batch" --repeats 2 $flag --json >"$out/prefill-$as.json" || echo "not run"
    done
done

say "HTTP on $main: $clients clients"
port=18931
"$hearth" serve --model "$model" --load-format dummy --device "$main" --dtype "$dtype" --port "$port" \
    --max-running-requests "$clients" --max-queue "$requests" --max-model-len $((prompt + output + 64)) \
    --log-level warn >"$out/serve.log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null || true' EXIT
for _ in $(seq 1200); do
    curl -sf "http://127.0.0.1:$port/ready" >/dev/null && break
    kill -0 "$server" || { cat "$out/serve.log"; exit 1; }
    sleep 0.1
done
for shared in 0 $((prompt * 3 / 4)); do
    timeout "$per_step" "$load" --url "http://127.0.0.1:$port" --json --concurrency "$clients" \
        --requests "$requests" --prompt-tokens $((prompt - shared)) --shared-prefix "$shared" \
        --output-tokens "$output" >"$out/http-shared-$shared.json" || echo "not run"
done
curl -sf "http://127.0.0.1:$port/metrics" >"$out/metrics.txt" || echo "no metrics"
kill "$server"
wait "$server" 2>/dev/null || true
trap - EXIT

say "transformers beside, where Python has torch"
timeout 180 python3 "$here/gpu_peer.py" "$model" "$context" "$torch_steps" "$prefill" "$prefill_batch" \
    >"$out/peer.json" 2>"$out/peer.log" || { echo "not run: $(tail -n 1 "$out/peer.log")"; rm -f "$out/peer.json"; }

say "the table"
python3 "$here/gpu_table.py" table "$out" "$main" "$model" "$context" "$decode" | tee "$out/table.md"
say "done"

#!/bin/sh
# Measures Hearth beside llama.cpp on this machine's CPU, in turns, with the same shapes: prefill of 512
# tokens, and decoding of one sequence and of eight, in each format. It prints every number and then the
# medians.
#
#   LLAMA_BIN=.../build/bin benches/cpu.sh MODEL_DIR GGUF_PREFIX [ROUNDS] [FORMATS]
#
# MODEL_DIR has a config.json in Hugging Face format (benches/models/); the weights are random.
# GGUF_PREFIX-FORMAT.gguf are files of the same shapes, converted and quantised by llama.cpp, for each of
# FORMATS ("f32 bf16 Q8_0 Q4_0"). Each round runs one program at a time. benches/http.sh measures HTTP,
# shared prefixes and peak memory.
#
# TRANSFORMERS_PYTHON may name a Python that has transformers and torch, and MISTRALRS_PYTHON one that has
# mistralrs. Then these programs are measured too; mistral.rs takes its weights from PEER_WEIGHTS
# (benches/peers/cpu_peer.py makes them).
set -eu
hearth=${HEARTH_BIN:-target/release/hearth}
model=$1 prefix=$2 rounds=${3:-3} formats=${4:-f32 bf16 Q8_0 Q4_0} threads=$(nproc)
numbers=$(mktemp)
trap 'rm -f "$numbers"' EXIT

# number WHO FORMAT WORK VALUE
number() {
    echo "$1 $2 $3 $4" | tee -a "$numbers"
}

# llama FORMAT
llama() {
    "$LLAMA_BIN/llama-bench" -m "$prefix-$1.gguf" -t "$threads" -p 512 -n 48 -r 1 -o md 2>/dev/null |
        awk -F'|' '/pp512|tg48/ { split($8, value, " "); gsub(" ", "", $7); print $7, value[1] }' |
        while read -r work value; do number llama.cpp "$1" "$work" "$value"; done
    number llama.cpp "$1" tg48x8 "$("$LLAMA_BIN/llama-batched-bench" -m "$prefix-$1.gguf" \
        -t "$threads" -c 1024 -npp 4 -ntg 48 -npl 8 2>/dev/null |
        awk -F'|' '$4 + 0 == 8 { print $9 + 0 }')"
}

# bench FORMAT FLAGS...
bench() {
    case $1 in
    f32) flags="--dtype f32" ;;
    bf16) flags="--dtype bf16" ;;
    Q8_0) flags="--dtype bf16 --quantization int8" ;;
    Q4_0) flags="--dtype bf16 --quantization int4" ;;
    esac
    shift
    # shellcheck disable=SC2086
    "$hearth" bench --model "$model" --load-format dummy --device cpu --repeats 1 $flags "$@"
}

# peer WHO FORMAT PYTHON MODEL_DIR
peer() {
    "$3" "$(dirname "$0")/peers/cpu_peer.py" "$1" "$4" "$2" 2>/dev/null | grep -E '^(pp512|tg48|tg48x8) ' |
        while read -r work value; do number "$1" "$2" "$work" "$value"; done
}

for round in $(seq "$rounds"); do
    for format in $formats; do
        llama "$format"
        case $format in f32 | bf16)
            test -z "${TRANSFORMERS_PYTHON-}" || peer transformers "$format" "$TRANSFORMERS_PYTHON" "$model" ;;
        esac
        test -z "${MISTRALRS_PYTHON-}" || peer mistralrs "$format" "$MISTRALRS_PYTHON" "$PEER_WEIGHTS"
        bench "$format" --prompt-tokens 512 --decode-tokens 1 --batch 1 >"$numbers.out"
        number hearth "$format" pp512 "$(awk '$1 == 1 && $2 == 512 { print $4 }' "$numbers.out")"
        bench "$format" --prompt-tokens 4 --decode-tokens 48 --batch 1,8 >"$numbers.out"
        number hearth "$format" tg48 "$(awk '$1 == 1 && $2 == 4 { print $5 }' "$numbers.out")"
        number hearth "$format" tg48x8 "$(awk '$1 == 8 && $2 == 4 { print $5 }' "$numbers.out")"
        number memory "$format" GB/s "$(awk '/memory reads/ { print $3 }' "$numbers.out")"
        rm -f "$numbers.out"
    done
done

echo "== medians of $rounds: format, work, who, tokens a second, Hearth's beside it; memory reads"
sort -k1,3 -k4,4g "$numbers" | awk '
    { key = $1 " " $2 " " $3; count[key]++; values[key, count[key]] = $4 }
    function median(key) {
        n = count[key]
        return n % 2 ? values[key, (n + 1) / 2] : (values[key, n / 2] + values[key, n / 2 + 1]) / 2
    }
    END {
        for (key in count) {
            split(key, part, " ")
            hearth = "hearth " part[2] " " part[3]
            beside = part[1] != "hearth" && count[hearth] ? sprintf("%.2f", median(hearth) / median(key)) : ""
            print part[2], part[3], part[1], median(key), beside
        }
    }' | sort

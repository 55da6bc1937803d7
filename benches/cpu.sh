#!/bin/sh
# Hearth beside llama.cpp on this machine's CPU, in turns, the same shapes: prefill of 512 tokens,
# decoding alone and eight at once, in each format. Prints every number and then the medians.
#
#   LLAMA_BIN=.../build/bin benches/cpu.sh MODEL_DIR GGUF_PREFIX [ROUNDS] [FORMATS]
#
# MODEL_DIR has a config.json in Hugging Face format (benches/models/); weights are random.
# GGUF_PREFIX-FORMAT.gguf are the same shapes, converted and quantised by llama.cpp, for each of
# FORMATS ("f32 bf16 Q8_0 Q4_0"). Each round runs one program at a time. benches/http.sh has the
# rest of the table: HTTP, shared prefixes, peak memory.
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

for round in $(seq "$rounds"); do
    for format in $formats; do
        llama "$format"
        bench "$format" --prompt-tokens 512 --decode-tokens 1 --batch 1 >"$numbers.out"
        number hearth "$format" pp512 "$(awk '$1 == 1 && $2 == 512 { print $4 }' "$numbers.out")"
        bench "$format" --prompt-tokens 4 --decode-tokens 48 --batch 1,8 >"$numbers.out"
        number hearth "$format" tg48 "$(awk '$1 == 1 && $2 == 4 { print $5 }' "$numbers.out")"
        number hearth "$format" tg48x8 "$(awk '$1 == 8 && $2 == 4 { print $5 }' "$numbers.out")"
        number memory "$format" GB/s "$(awk '/memory reads/ { print $3 }' "$numbers.out")"
        rm -f "$numbers.out"
    done
done

echo "== medians of $rounds: format, work, llama.cpp, Hearth, ratio; memory reads"
sort -k1,3 -k4,4g "$numbers" | awk '
    { key = $2 " " $3; count[$1 " " key]++; values[$1 " " key, count[$1 " " key]] = $4; keys[key] }
    function median(who) {
        n = count[who]
        return n % 2 ? values[who, (n + 1) / 2] : (values[who, n / 2] + values[who, n / 2 + 1]) / 2
    }
    END {
        for (key in keys) {
            if (key ~ /GB/) { print key, median("memory " key) }
            else { a = median("llama.cpp " key); b = median("hearth " key); print key, a, b, (a ? b / a : "-") }
        }
    }' | sort

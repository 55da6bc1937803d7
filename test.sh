#!/bin/sh
# The gate: format, clippy with warnings denied, all tests, on the CPU, on lavapipe and on a
# stand-in for CUDA.
#
# Installs what it needs where it can: lavapipe (Mesa's Vulkan on the CPU) and Chromium with apt, and
# a Python environment in .venv with the OpenAI client. Anything else is Rust.
set -eu
cd "$(dirname "$0")"

step() { printf '\n== %s\n' "$*"; }

root() {
    if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo -n "$@"; else return 1; fi
}

step "tools"
if command -v apt-get >/dev/null && ! ls /usr/share/vulkan/icd.d/lvp_icd* >/dev/null 2>&1; then
    (root apt-get update -q && root apt-get install -y -q mesa-vulkan-drivers libvulkan1) >/dev/null ||
        echo "could not install lavapipe: the Vulkan tests will be skipped"
fi
if ls /usr/share/vulkan/icd.d/lvp_icd* >/dev/null 2>&1; then
    # With lavapipe there, a Vulkan test that finds no adapter is a failure, not a skip.
    export HEARTH_REQUIRE_VULKAN=1
fi
if ! command -v chromium >/dev/null && ! command -v google-chrome >/dev/null && command -v apt-get >/dev/null; then
    (root apt-get update -q && root apt-get install -y -q --no-install-recommends chromium) >/dev/null ||
        echo "could not install Chromium: the page will not be tested in a browser"
fi
# The environment counts as made when the client imports: a broken one is made again.
if ! .venv/bin/python -c 'import aiohttp, anthropic, grpc, kubernetes_validate, langchain_openai, msgspec, numpy, ollama, openai, opentelemetry.proto, prometheus_client, pybase64, requests, rotel, schemathesis, sglang_router, smg, tqdm, zmq' 2>/dev/null; then
    rm -rf .venv
    python3 -m venv .venv 2>/dev/null || {
        (root apt-get update -q && root apt-get install -y -q python3-venv) >/dev/null
        python3 -m venv .venv
    }
    # An index that cannot be reached for a moment is no failure of the tests.
    for tries_left in 2 1 0; do
        .venv/bin/pip install -q --disable-pip-version-check -r tests/python/requirements.txt && break
        [ "$tries_left" -gt 0 ] && sleep 5 || exit 1
    done
fi
# SGLang's front-end language. Its wheel asks for torch and CUDA, which the language does not need.
if [ ! -d .venv/sglang/sglang/lang ]; then
    rm -rf .venv/sglang
    for tries_left in 2 1 0; do
        .venv/bin/pip install -q --disable-pip-version-check --no-deps --no-compile --only-binary=:all: --python-version 3.11 \
            --platform manylinux_2_34_x86_64 --target .venv/sglang sglang==0.5.23 && break
        [ "$tries_left" -gt 0 ] && sleep 5 || exit 1
    done
fi
# The official tests of JSON Schema, which come with the source of Python's jsonschema.
if [ ! -d .venv/json-schema-tests/draft7 ]; then
    rm -rf .venv/json-schema-tests
    for tries_left in 2 1 0; do
        .venv/bin/pip download -q --disable-pip-version-check --no-deps --no-binary jsonschema -d .venv/json-schema-tests \
            jsonschema==4.26.0 && break
        [ "$tries_left" -gt 0 ] && sleep 5 || exit 1
    done
    tar -xzf .venv/json-schema-tests/jsonschema-4.26.0.tar.gz -C .venv/json-schema-tests --strip-components=3 \
        jsonschema-4.26.0/json/tests
fi
# promtool, unpacked and not installed: Debian's package would start a server.
if [ ! -x target/tools/usr/bin/promtool ] && command -v apt-get >/dev/null && command -v dpkg >/dev/null; then
    mkdir -p target/tools
    (cd target/tools && apt-get download -q prometheus && dpkg -x prometheus_*.deb .) >/dev/null 2>&1 ||
        echo "could not fetch prometheus: the rules will not be checked with promtool"
fi
if [ -x target/tools/usr/bin/promtool ]; then
    export HEARTH_PROMTOOL="$PWD/target/tools/usr/bin/promtool"
fi
# vmagent, a collector that takes OTLP and writes to Prometheus, out of a newer Debian than 12:
# Prometheus in Debian is built without its receiver for OTLP.
if [ ! -x target/tools/usr/bin/vmagent ] && [ "$(dpkg --print-architecture 2>/dev/null)" = amd64 ]; then
    mkdir -p target/tools/usr/bin target/tools/debian13/lists/partial target/tools/debian13/cache/archives/partial
    (
        cd target/tools/debian13
        mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep -m 1 '/debian/*$')
        echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie main" >sources.list
        newer() {
            apt-get -q -o "Dir::Etc::SourceList=$PWD/sources.list" -o Dir::Etc::SourceParts=- -o "Dir::State::Lists=$PWD/lists" \
                -o "Dir::Cache=$PWD/cache" -o APT::Sandbox::User=root -o Acquire::Languages=none \
                -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false "$@"
        }
        newer update && newer download victoria-metrics && dpkg -x victoria-metrics_*.deb . && mv usr/bin/vmagent ../usr/bin
    ) >/dev/null 2>&1 || echo "could not fetch vmagent: pushed metrics will not be compared with scraped ones"
    rm -rf target/tools/debian13
fi
if [ -x target/tools/usr/bin/vmagent ]; then
    export HEARTH_VMAGENT="$PWD/target/tools/usr/bin/vmagent"
fi
export HEARTH_PYTHON="$PWD/.venv/bin/python" HEARTH_REQUIRE_PYTHON=1

step "format"
cargo fmt --all --check

step "clippy"
cargo clippy --release --workspace --all-targets --locked -- -D warnings

# The crates without tensors, with debug assertions: their invariants are checked at every step. Their
# dependencies are not optimised: building them took longer than the tests.
step "radix and engine"
plain='profile.dev.package."*".opt-level=0'
cargo test --locked --config "$plain" -p hearth-radix -p hearth-engine

step "every order in which callers and the engine can meet"
cargo test --locked --config "$plain" -p hearth-engine --features loom --lib interleavings

# Optimised, in the profile of `cargo run --release`, the `hearth` binary included. Always
# the whole workspace: another selection unifies features differently and builds Burn again.
step "everything"
(unset HEARTH_REQUIRE_CUDA && cargo test --release --workspace --locked)

# What is CUDA's only, executed by this CPU: tests/cuda/README.md.
step "a stand-in for CUDA"
if [ "$(uname -sm)" = "Linux x86_64" ] && grep -qw avx2 /proc/cpuinfo && command -v g++ >/dev/null; then
    tests/cuda/test/run
    # Tests that find no device pass: launches are what shows that one was there.
    rm -f target/cuda/launches.txt
    on_cuda() {
        HEARTH_REQUIRE_CUDA=1 STANDIN_LOG="$PWD/target/cuda/launches.txt" \
            CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="$PWD/tests/cuda/run" \
            cargo test --release --workspace --locked --test "$1" on_cuda
    }
    (export HEARTH_KERNEL_CASES=2 HEARTH_EXPECT_TILES=cuda:f16,cuda:bf16 && on_cuda ops)
    on_cuda all
    [ -s target/cuda/launches.txt ] || { echo "no kernel was launched" && exit 1; }
elif [ -n "${HEARTH_REQUIRE_CUDA:-}" ]; then
    echo "HEARTH_REQUIRE_CUDA is set, but there is no g++, or not Linux on x86-64 with AVX2" && exit 1
else
    echo "not run: it takes g++, and Linux on x86-64 with AVX2"
fi

step "passed"

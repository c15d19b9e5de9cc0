#!/bin/bash
# Pack vLLM and this project's dependencies for a GPU machine that has no network.
#
# Usage: benchmarks/gpu/build.sh [OUT]        (OUT is .gpu by default, which git ignores)
#
# For a machine with Linux x86-64, Python 3.12, torch 2.11+cu130, transformers 5 and the usual
# numerical packages; vLLM 0.26.0 is the newest that is built for that torch. The result is
# OUT/part0, part1 and part2, each under 62 MB so that they can be carried one at a time;
# benchmarks/gpu/setup.sh unpacks them there.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
OUT=${1:-"$HERE/../../.gpu"}
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
WORK=$OUT/work
PLATFORMS=(--platform manylinux2014_x86_64 --platform manylinux1_x86_64)
for minor in 17 24 27 28 31 34 35; do PLATFORMS+=(--platform "manylinux_2_${minor}_x86_64"); done

fetch() { # FOLDER REQUIREMENT...: download once
    [ -e "$1.done" ] && return
    python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
        "${PLATFORMS[@]}" -d "$@"
    touch "$1.done"
}

mkdir -p "$WORK" "$OUT"/part0 "$OUT"/part1 "$OUT"/part2
fetch "$WORK/vllm" vllm==0.26.0
fetch "$WORK/needs" -r "$HERE/vllm-needs.txt"
fetch "$WORK/own" -r "$HERE/own-needs.txt"

if [ ! -e "$WORK/vllm.tar.xz" ]; then
    rm -rf "$WORK/site" && mkdir "$WORK/site"
    unzip -q "$WORK"/vllm/vllm-*.whl -d "$WORK/site"
    # A Hopper GPU uses FlashAttention 3 only; leave out what it never loads, and the symbols.
    rm -rf "$WORK"/site/vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so \
        "$WORK"/site/vllm/third_party/fmha_sm100 "$WORK"/site/vllm/third_party/*/include
    rm -f "$WORK"/site/vllm/third_party/deep_gemm/_C.cpython-31[0134]*.so
    strip --strip-unneeded "$WORK"/site/vllm/*.so "$WORK"/site/vllm/vllm_flash_attn/*.so 2>/dev/null || true
    tar cf - -C "$WORK/site" . | xz -T2 -6 > "$WORK/vllm.tar.tmp"
    mv "$WORK/vllm.tar.tmp" "$WORK/vllm.tar.xz"
fi

rm -rf "$WORK/site2" && mkdir "$WORK/site2"
for wheel in "$WORK"/needs/*.whl "$WORK"/own/*.whl; do unzip -q -o "$wheel" -d "$WORK/site2"; done
# Translations, development files and models that are not used here.
rm -rf "$WORK"/site2/pycountry/locales "$WORK"/site2/pymupdf/layout "$WORK"/site2/pymupdf/mupdf-devel \
    "$WORK"/site2/llama_index/core/_static "$WORK"/site2/zstandard/_cffi.*
tar cf - -C "$WORK/site2" . | xz -T2 -6 > "$WORK/deps.tar.xz"

rm -f "$OUT"/part?/*
split -b 61000000 -d "$WORK/vllm.tar.xz" "$WORK/vllm.part."
mv "$WORK/vllm.part.00" "$OUT/part0/"
mv "$WORK/vllm.part.01" "$OUT/part1/"
mv "$WORK"/vllm.part.* "$WORK/deps.tar.xz" "$OUT/part2/"
du -sb "$OUT"/part?

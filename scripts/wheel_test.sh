#!/bin/bash
# Install the built wheel with each extra alone, in a new environment each, and use it.
#
# Usage: scripts/wheel_test.sh PYTHON DIST
set -euo pipefail
PYTHON=$1 DIST=$2
HERE=$(cd "$(dirname "$0")" && pwd)
WHEEL=$(ls -t "$DIST"/deepseek_ocr_loaders-*.whl | head -1)
WHEEL=$(cd "$(dirname "$WHEEL")" && pwd)/$(basename "$WHEEL")
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
passed=0
for extra in "" langchain llama-index cpu; do
    name=${extra:-none}
    "$PYTHON" -m venv "$WORK/$name"
    "$WORK/$name/bin/python" -m pip --disable-pip-version-check install --quiet \
        "$WHEEL${extra:+[$extra]}" 2> "$WORK/pip.log" || { cat "$WORK/pip.log" >&2; exit 1; }
    # From a folder where the sources cannot be imported by accident.
    (cd "$WORK" && DEEPSEEK_OCR_STATE_DIR="$WORK/state" "$WORK/$name/bin/python" "$HERE/use_wheel.py" "$name" \
        "$HERE/../examples/samples/born_digital.pdf")
    passed=$((passed + 1))
    rm -rf "${WORK:?}/$name"
done
echo "$passed passed, 0 failed"

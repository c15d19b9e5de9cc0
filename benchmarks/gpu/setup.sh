#!/bin/bash
# On the GPU machine: unpack the parts and write the model folders.
#
# Usage: benchmarks/gpu/setup.sh PARTS SITE MODELS
#   PARTS   folder that holds what was in part0, part1 and part2
#   SITE    folder for the packages; goes on PYTHONPATH
#   MODELS  folder for the models without weights: MODELS/ocr and MODELS/ocr-2
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
PARTS=$1 SITE=$2 MODELS=$3
mkdir -p "$SITE" "$MODELS"
cat "$PARTS"/vllm.part.* | xz -dc -T4 | tar xf - -C "$SITE" &
xz -dc "$PARTS/deps.tar.xz" | tar xf - -C "$SITE"
wait %1
export PYTHONPATH=$SITE
python3 "$HERE/../../scripts/make_dummy_model.py" "$MODELS/ocr" --full
python3 "$HERE/../../scripts/make_dummy_model.py" "$MODELS/ocr-2" --full --ocr-2
python3 -c 'import torch, vllm; print("torch", torch.__version__, "vllm", vllm.__version__)'
PYTHONPATH=$HERE/../../src:$SITE python3 -c '
import langchain_core, llama_index.core, openai, pymupdf, transformers
from deepseek_ocr_loaders import DeepSeekOCRLoader, DeepSeekOCRReader, DeepSeekOCRServer
print("openai", openai.__version__, "pymupdf", pymupdf.__version__, "transformers", transformers.__version__)'

# To be sourced on the GPU machine, in the root of the repository, once setup.sh has run.
export SITE=${SITE:-/tmp/site} MODELS=${MODELS:-/tmp/models}
export PYTHONPATH=$PWD/src:$SITE PYTHONUNBUFFERED=1
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 DEEPSEEK_OCR_STATE_DIR=${DEEPSEEK_OCR_STATE_DIR:-/tmp/ocr-state}

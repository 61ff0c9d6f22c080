#!/bin/sh
# Makes the folder of models, MODELS, that the lists of this folder ask for, but for those of evidence/h200-nvfp4/offline.sh.
#   sh benchmarks/configurations/make_models.sh CHECKPOINT MODELS      (PYTHON=python3; seconds)
# CHECKPOINT is SmolLM2-135M-Instruct in BF16 (`optistack model fetch smollm2-135m`), which MODELS gets a link to. The slices
# with Kimi's proportions have no weights of their own (`--load-format dummy`): each is its config.json and that
# checkpoint's tokenizer, with an entry for every token that the dummy weights may answer with.
set -eu
[ $# = 2 ] || { echo "usage: make_models.sh CHECKPOINT MODELS" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd) checkpoint=$(cd "$1" && pwd) models=$2
[ -f "$checkpoint/tokenizer.json" ] || { echo "make_models.sh: there is no tokenizer.json in $checkpoint" >&2; exit 1; }
mkdir -p "$models"
ln -sfn "$checkpoint" "$models/smollm2-135m"
for slice in kimi-slice kimi-slice-nvfp4; do
    mkdir -p "$models/$slice"
    cp "$here/$slice/config.json" "$models/$slice/"
    cp "$checkpoint/tokenizer_config.json" "$models/$slice/"
    "${PYTHON:-python3}" "$here/../pad_tokenizer.py" "$checkpoint/tokenizer.json" "$models/$slice/config.json" "$models/$slice/tokenizer.json"
done

#!/bin/sh
# Make and measure the drafters of SmolLM2-135M-Instruct on one GPU, step by step; each step is named on the command line.
#   [WORK=/tmp/dflash] [MODEL=/tmp/smollm2] [OUT=/tmp/dflash/out] sh evidence/h200-dflash/steps.sh STEP...
# Run in the repository's root with a python3 that has torch, transformers, vLLM and optistack's dependencies (PYTHONPATH
# keeps what it has). Steps, with the seconds they take on an H200:
#   prompts    prompts from the files of this machine (PROMPTS_MODEL holds the tokenizer; default MODEL)   60 to 120
#   generate   the target's answers in GENERATE_S seconds (200), and the engine's start                    300
#   compare    the shapes and losses that were considered, each trained for COMPARE_S seconds (45)         7 x 55
#   general    the general drafter: prose, and one part in about four of code; GENERAL_S seconds (240)     260
#   code       the same, fine-tuned on code; CODE_S seconds (150)                                          170
#   evaluate   the acceptance of both on the held-out answers, by the plugin's own evaluation              30
#   bench      vLLM without a draft, with the general and with the fine-tuned one                          3 x 100
#   agree      the plugin's evaluation on the very answers that vLLM gave in bench                         30
# OUT gets the drafters, the logs and the figures; SHAPE is the drafter's (default: two layers that read two).
set -eu
work=${WORK:-/tmp/dflash} model=${MODEL:-/tmp/smollm2} here=evidence/h200-dflash
out=${OUT:-$work/out} shape=${SHAPE:---layers 2 --capture 1,27}
batch=${BATCH:---batch-tokens 16384 --anchors 64 --chunk-tokens 16384 --report-every 500}
export PYTHONPATH="core:adapters:conformance:plugins/dflash/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_LOGGING_LEVEL=WARNING
mkdir -p "$work" "$out"
dflash() { python3 -m optistack_dflash "$@"; }
held=$work/data/held-out
for step in "$@"; do
    echo "== $step"
    case $step in
    prompts)
        python3 $here/prompts.py --target "${PROMPTS_MODEL:-$model}" --out "$work/prompts.part" --train "${TRAIN:-40000}"
        mv "$work/prompts.part" "$work/prompts.jsonl" ;;
    generate)
        i=0; while [ ! -e "$work/prompts.jsonl" ] && [ $i -lt 180 ]; do sleep 1; i=$((i + 1)); done
        python3 $here/generate.py --target "$model" --prompts "$work/prompts.jsonl" --out "$work/data" \
            --seconds "${GENERATE_S:-200}" ${GENERATE:-} | tee "$out/generate.log" ;;
    compare)
        try() {
            name=$1; shift
            echo "-- $name: $*"
            rm -rf "$work/compare"
            dflash train --target "$model" --out "$work/compare" --data "$work/data/train/code" --held-out "$held/code" \
                --max-seconds "${COMPARE_S:-45}" --steps 100000 $batch "$@" | tail -2
            tail -1 "$work/compare/training/log.jsonl" | sed "s/^{/{\"name\": \"$name\", /" >>"$out/compare.jsonl"
        }
        try two-layers --layers 2 --capture 1,27
        try two-layers-late --layers 2 --capture 14,27
        try three-layers --layers 3 --capture 1,14,27 --intermediate 832
        try two-layers-reverse-kl --layers 2 --capture 1,27 --loss reverse-kl
        try two-layers-tv --layers 2 --capture 1,27 --loss tv
        try two-layers-ce --layers 2 --capture 1,27 --loss ce
        try two-layers-3e-3 --layers 2 --capture 1,27 --learning-rate 3e-3 ;;
    general)
        dflash train --target "$model" --out "$out/general" --data "$work/data/train/prose" \
            --data "$work/data/train/code/greedy-0000.safetensors" --data "$work/data/train/code/sampled-0002.safetensors" \
            --held-out "$held/code" --max-seconds "${GENERAL_S:-240}" --steps 100000 $shape $batch ${TRAINING:-} ;;
    code)
        dflash finetune "$out/general" --target "$model" --out "$out/code" --data "$work/data/train/code" \
            --held-out "$held/code" --max-seconds "${CODE_S:-150}" --steps 100000 $batch ${FINETUNING:-} ;;
    evaluate)
        for draft in general code; do
            dflash evaluate "$out/$draft" --target "$model" --data "$held/code" --data "$held/prose" --json |
                tee "$out/evaluate-$draft.json"
        done ;;
    bench)
        for draft in none general code; do
            given=; [ $draft = none ] || given="--draft $out/$draft"
            python3 $here/bench.py --target "$model" --prompts "$work/prompts.jsonl" --out "$work/bench-$draft.json" $given ${BENCH:-}
            cp "$work/bench-$draft.json" "$out/"
        done ;;
    agree)
        for draft in general code; do
            dflash evaluate "$out/$draft" --target "$model" --data "$work/bench-$draft.code.safetensors" \
                --data "$work/bench-$draft.prose.safetensors" --json | tee "$out/agree-$draft.json"
        done ;;
    *) echo "steps.sh: no step $step" >&2; exit 2 ;;
    esac
done

#!/bin/sh
# Make and measure the drafters of SmolLM2-135M-Instruct on one GPU, step by step; each step is named on the command line.
#   [WORK=/tmp/dflash] [MODEL=/tmp/smollm2] [OUT=/tmp/dflash/out] sh evidence/h200-dflash/steps.sh STEP...
# Run in the repository's root with a python3 that has torch, transformers, vLLM and optistack's dependencies (PYTHONPATH
# keeps what it has). Steps, with the variable that says for how many seconds each trains or generates:
#   prompts    prompts from the files of this machine (PROMPTS_MODEL holds the tokenizer; default MODEL)
#   generate   the target's answers, after waiting for prompts                            GENERATE_S (150)
#   compare    shapes, and a learning rate, trained from nothing on code                  COMPARE_S (30), three times
#   general    the general drafter, of the best shape: prose, and one shard of code  GENERAL_S (180)
#   losses     losses, each used to fine-tune the general drafter on code                 LOSSES_S (25), four times
#   code       the general drafter fine-tuned on code, with the best loss                 CODE_S (100)
#   evaluate   the acceptance of both on the held-out answers, by the plugin's own evaluation
#   bench      vLLM without a draft, with the general and with the fine-tuned one (DRAFTS: which)
#   agree      the plugin's evaluation on the very answers that vLLM gave in bench
#   pack       drafters, curves and figures to the folder PACK
# OUT gets the drafters, the logs and the figures. SHAPE and TUNING override what compare and losses found best.
set -eu
work=${WORK:-/tmp/dflash} model=${MODEL:-/tmp/smollm2} here=evidence/h200-dflash
out=${OUT:-$work/out}
batch=${BATCH:---batch-tokens 16384 --anchors 64 --chunk-tokens 16384 --report-every 500}
export PYTHONPATH="core:adapters:conformance:plugins/dflash/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TQDM_DISABLE=1
export VLLM_NO_USAGE_STATS=1 VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_LOGGING_LEVEL=${VLLM_LOGGING_LEVEL:-WARNING}
mkdir -p "$work" "$out"
data=$work/data held=$work/data/held-out
dflash() { python3 -m optistack_dflash "$@"; }

# try TABLE NAME ARGUMENTS...: train with ARGUMENTS, and note what came of it in TABLE
try() {
    table=$out/$1.jsonl name=$2; shift 2
    echo "-- $name: $*"
    rm -rf "$work/try"
    dflash "$@" --target "$model" --out "$work/try" --data "$data/train/code" --held-out "$held/code" --steps 100000 $batch |
        grep -v "^$work"
    tail -1 "$work/try/training/log.jsonl" | sed "s/^{/{\"name\": \"$name\", /" >>"$table"
}

# best TABLE: the name in TABLE with the longest acceptance; nothing where there is no table
best() {
    [ ! -e "$out/$1.jsonl" ] || python3 -c 'import json, sys
print(max(map(json.loads, sys.stdin), key=lambda one: one["acceptance_length"])["name"])' <"$out/$1.jsonl"
}

shape_of() {
    case $1 in
    three*) echo "--layers 3 --capture 1,14,27 --intermediate 832" ;;
    *) echo "--layers 2 --capture 1,27" ;;
    esac
    case $1 in *-3e-3) echo "--learning-rate 3e-3" ;; esac
}

for step in "$@"; do
    echo "== $step, $(date +%T)"
    case $step in
    prompts)
        python3 $here/prompts.py --target "${PROMPTS_MODEL:-$model}" --out "$work/prompts.part" --train "${TRAIN:-40000}"
        mv "$work/prompts.part" "$work/prompts.jsonl" ;;
    generate)
        i=0; while [ ! -e "$work/prompts.jsonl" ] && [ $i -lt 180 ]; do sleep 1; i=$((i + 1)); done
        python3 $here/generate.py --target "$model" --prompts "$work/prompts.jsonl" --out "$data" \
            --seconds "${GENERATE_S:-150}" ${GENERATE:-} 2>&1 | tee "$out/generate.log" ;;
    compare)
        rm -f "$out/compare.jsonl"
        for name in two three; do
            try compare $name train $(shape_of $name) --max-seconds "${COMPARE_S:-30}"
        done
        name=$(best compare)-3e-3
        try compare "$name" train $(shape_of "$name") --max-seconds "${COMPARE_S:-30}" ;;
    general)
        dflash train --target "$model" --out "$out/general" --data "$data/train/prose" \
            --data "$data/train/code/sampled-0003.safetensors" \
            --held-out "$held/code" --max-seconds "${GENERAL_S:-180}" --steps 100000 \
            ${SHAPE:-$(shape_of "$(best compare)")} $batch ;;
    losses)
        rm -f "$out/losses.jsonl"
        for name in kl reverse-kl tv ce; do
            try losses $name finetune "$out/general" --loss $name --max-seconds "${LOSSES_S:-25}"
        done ;;
    code)
        loss=$(best losses)
        dflash finetune "$out/general" --target "$model" --out "$out/code" --data "$data/train/code" \
            --held-out "$held/code" --max-seconds "${CODE_S:-100}" --steps 100000 $batch ${TUNING:---loss ${loss:-kl}} ;;
    evaluate)
        for draft in general code; do
            dflash evaluate "$out/$draft" --target "$model" --data "$held/code" --data "$held/prose" --json |
                tee "$out/evaluate-$draft.json"
        done ;;
    bench)
        for draft in ${DRAFTS:-none general code}; do
            given=; [ "$draft" = none ] || given="--draft $out/$draft"
            python3 $here/bench.py --target "$model" --prompts "$work/prompts.jsonl" --out "$work/bench-$draft.json" \
                $given ${BENCH:-}
            cp "$work/bench-$draft.json" "$out/"
        done ;;
    agree)
        for draft in general code; do
            dflash evaluate "$out/$draft" --target "$model" --data "$work/bench-$draft.code.safetensors" \
                --data "$work/bench-$draft.prose.safetensors" --json | tee "$out/agree-$draft.json"
        done ;;
    pack)
        for draft in general code; do
            [ -e "$out/$draft/model.safetensors" ] || continue
            mkdir -p "$PACK/$draft"
            cp "$out/$draft/model.safetensors" "$out/$draft/config.json" "$PACK/$draft/"
            cp "$out/$draft/training/log.jsonl" "$out/$draft.log.jsonl"
        done
        tar czf "$PACK/figures.tgz" -C "$out" $(cd "$out" && ls | grep -E '[.](json|jsonl|log)$') ;;
    *) echo "steps.sh: no step $step" >&2; exit 2 ;;
    esac
done
echo "== done, $(date +%T)"

#!/bin/sh
# What NVFP4 and FP8 KV cost, measured without an engine, and the checkpoints that engines are then started with.
#   [MODEL=/tmp/smollm2] [MINUTES=4] [DEVICE=cuda] sh evidence/h200-nvfp4/offline.sh WORK [STEP...]
# Run in the repository's root with a python3 (PYTHON) that has torch, transformers, tokenizers, safetensors and
# optistack's dependencies. Steps, all of them in this order where none is named:
#   train      the small MoE of MLA: WORK/moe
#   calibrate  KV scales and largest inputs, by what each model writes itself: WORK/{smollm2,moe}-kv
#   convert    WORK/smollm2-* (modelopt W4A16 and W4A4, compressed-tensors W4A16) and WORK/moe-* (experts), verified
#   nvfp4      KL, top-1 and loss by scope, method and source
#   kv         KL, top-1 and loss of FP8 KV by position and scales
# A step's parts fail alone. WORK/results gets their figures and logs, and steps.txt: part, exit code, seconds.
set -u
work=$1; shift
model=${MODEL:-/tmp/smollm2} device=${DEVICE:-cuda} python=${PYTHON:-python3} here=$(pwd)
out=$work/results moe=$work/moe
export PYTHONPATH="$here/core:$here/adapters:$here/conformance:$here/plugins/quant_nvfp4/src:$here/plugins/kv_fp8/src${PYTHONPATH:+:$PYTHONPATH}"
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TQDM_DISABLE=1 HF_HUB_DISABLE_PROGRESS_BARS=1 PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=true
mkdir -p "$out"
failed=0

# part NAME COMMAND...: run it, its output to NAME.log and the end of that to the screen
part() {
    name=$1 began=$(date +%s); shift
    echo "-- $name: $*"
    "$@" >"$out/$name.log" 2>&1
    code=$?
    [ $code = 0 ] || failed=1
    tail -${TAIL:-4} "$out/$name.log" | cut -c1-200
    echo "$name $code $(($(date +%s) - began))" | tee -a "$out/steps.txt"
    return $code
}

calibrate() { part "calibrate-$1" "$python" -m optistack_kv_fp8 calibrate "$2" --out "$work/$1-kv" --device "$device" --new-tokens "${NEW_TOKENS:-128}"; }

# convert NAME SOURCE OPTIONS...: to WORK/NAME, and compare what was written with the source
convert() {
    made=$1 source=$2; shift 2
    part "convert-$made" "$python" -m optistack_quant_nvfp4 convert "$source" "$work/$made" --device "$device" --json "$@" &&
        part "verify-$made" "$python" -m optistack_quant_nvfp4 verify "$work/$made" --against "$source" --device "$device"
}

nvfp4() { part "nvfp4-$1" "$python" benchmarks/nvfp4_quality.py "$2" "$out/nvfp4-$1.json" --device "$device" --tokens "${TOKENS:-32768}"; }

kv() {
    part "kv-$1" "$python" benchmarks/kv_fp8_quality.py "$2" "$out/kv-$1.json" --device "$device" --windows "${WINDOWS:-32}" ${KV:-}
}

[ $# -gt 0 ] || set -- train calibrate convert nvfp4 kv
for step in "$@"; do
    echo "== $step, $(date +%T)"
    case $step in
    train)
        train="$python benchmarks/small_moe/train.py $moe --device $device --minutes ${MINUTES:-4} ${TRAIN:-}"
        part train $train || part train-eager $train --experts eager
        cp "$moe/training.json" "$out/" ;;
    calibrate) calibrate smollm2 "$model"; calibrate moe "$moe" ;;
    convert)
        convert smollm2-w4a16 "$model" --scope linear --format modelopt --weight-only
        convert smollm2-w4a16-ct "$model" --scope linear --format compressed-tensors --weight-only
        convert smollm2-w4a4 "$model" --scope linear --format modelopt --input-scales "$work/smollm2-kv/input-amax.json"
        convert moe-routed "$moe" --scope routed-experts --format modelopt --weight-only
        convert moe-routed-ct "$moe" --scope routed-experts --format compressed-tensors --weight-only
        convert moe-experts "$moe" --scope all-experts --format modelopt --weight-only
        convert moe-experts-w4a4 "$moe" --scope all-experts --format modelopt --input-scales "$work/moe-kv/input-amax.json" ;;
    nvfp4) nvfp4 smollm2 "$model"; nvfp4 moe "$moe" ;;
    kv) kv smollm2 "$model"; kv moe "$moe" ;;
    *) echo "There is no step $step." >&2; exit 2 ;;
    esac
done
exit $failed

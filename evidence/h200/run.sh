#!/bin/sh
# Apply stacks to an engine on one H200 and keep their receipts.
#   MODELS=... sh evidence/h200/run.sh ENGINE_PYTHON OUT STACK...
# MODELS holds smollm2, smollm2-dflash-untrained (optistack model fetch) and kimi-slice: the config.json of a DeepSeek-V3 model
# at Kimi K2's widths with 20 layers of 32 experts, and any tokenizer.
set -u
python=$1 out=$2
shift 2
nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv >"$out/gpu.csv"
for stack in "$@"; do
    name=$(basename "$stack" .yaml)
    echo "== $name"
    optistack plan --stack "$stack" --engine-python "$python" >"$out/$name.plan.txt" 2>&1
    optistack apply --stack "$stack" --engine-python "$python" --keep --json >"$out/$name.json" 2>"$out/$name.err"
    echo "exit code $?"
    tail -3 "$out/$name.err"
    nvidia-smi --query-gpu=memory.used --format=csv,noheader
    optistack verify --stack "$stack" --engine-python "$python" --endpoint "$(optistack status "$name" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["deployments"][0]["endpoints"][0])')" 2>&1 | cut -c1-230
    log=$(ls "${XDG_STATE_HOME:-$HOME/.local/state}/optistack/deployments/$name/logs/"*.log)
    grep -aE "KV cache|KV Cache|attention backend|Attention|memory|Memory|hicache|HiCache|HiRadix|draft|host" $log | cut -c1-300 | head -60 >"$out/$name.log"
    optistack down "$name"
done

#!/bin/sh
# SGLang with the trained drafter on one GPU: without a draft, with it, with it and a host tier. Not run yet.
#   MODEL=CHECKPOINT [DRAFT=drafters/smollm2-135m/code] sh evidence/h200-dflash/sglang.sh ENGINE_PYTHON OUT [plan]
# Run in the repository's root where `optistack` is installed. With `plan` nothing is started: the stacks are planned only,
# which a machine without a GPU can do (for NODE, h200x1). For each of stacks/sglang-*.yaml OUT gets the plan (with the bytes of
# draft, draft KV and captured states), the receipt (acceptance, warm against cold), tokens/s/user at 1, 4 and 16, the
# GPU's memory while it idles and after the speeds, and what SGLang's log says of memory.
set -u
python=$1 out=$2 only=${3:-}
export MODEL DRAFT="${DRAFT:-$PWD/drafters/smollm2-135m/code}"
NODE=${NODE:-h200x1}
here=evidence/h200-dflash prompts=evidence/h200-dflash/held-out-code.safetensors
used() { nvidia-smi --query-gpu=memory.used --format=csv,noheader; }
mkdir -p "$out"
failed=0
for stack in "$here"/stacks/sglang-*.yaml; do
    name=$(basename "$stack" .yaml)
    echo "== $name, $(date +%T)"
    if [ "$only" = plan ]; then
        optistack plan --stack "$stack" --engine-version 0.5.23 --node "$NODE" >"$out/$name.plan.txt" 2>&1 || failed=1
        tail -1 "$out/$name.plan.txt"
        continue
    fi
    optistack plan --stack "$stack" --engine-python "$python" >"$out/$name.plan.txt" 2>&1
    if ! optistack apply --stack "$stack" --engine-python "$python" --keep --json >"$out/$name.receipt.json" 2>"$out/$name.err"; then
        failed=1 && tail -3 "$out/$name.err"
    fi
    url=$(optistack status "$name" --json | python3 -c 'import json, sys
found = json.load(sys.stdin)["deployments"]
print(found[0]["endpoints"][0] if found else "")')
    if [ -n "$url" ]; then
        echo "idle: $(used)"
        python3 "$here/speed.py" --endpoint "$url" --prompts "$prompts" --out "$out/$name.speed.json" || failed=1
        echo "after the speeds: $(used)"
        logs="${XDG_STATE_HOME:-$HOME/.local/state}/optistack/deployments/$name/logs"
        grep -aihE "mem usage|KV Cache is allocated|draft|avail mem|hicache" "$logs"/*.log | cut -c1-300 | head -60 >"$out/$name.log.txt"
    fi
    optistack down "$name"
done
exit $failed

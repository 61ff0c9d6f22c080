#!/bin/sh
# The whole life of a stack: plan, apply, ask, verify, take down. Run by `make demo`.
set -eu
stack=stacks/laptop.yaml
trap 'optistack down laptop >/dev/null 2>&1 || true' EXIT
trap 'exit 130' INT TERM HUP

# Without AVX-512 or AMX vLLM has no FP8 KV on a CPU: the stack is then applied without it, and says so.
echo "== optistack apply --backend vllm --stack $stack --allow-degraded"
optistack apply --backend vllm --stack "$stack" --allow-degraded

endpoint=$(optistack status laptop --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["deployments"][0]["endpoints"][0])')
echo
echo "== a completion from $endpoint"
python3 - "$endpoint" <<'PY'
import json, sys, urllib.request

url = sys.argv[1]
# No proxy of the environment can reach this machine's loopback.
urllib.request.install_opener(urllib.request.build_opener(urllib.request.ProxyHandler({})))
with urllib.request.urlopen(f"{url}/v1/models") as answer:
    model = json.load(answer)["data"][0]["id"]
body = {"model": model, "prompt": "def fibonacci(n):\n", "max_tokens": 48, "temperature": 0}
request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
with urllib.request.urlopen(request) as answer:
    print(body["prompt"] + json.load(answer)["choices"][0]["text"])
PY
echo
echo "== optistack down laptop"
optistack down laptop

#!/bin/sh
# Tier 1 of the conformance suite through a router and on each engine behind it. Prints a JSON document for each.
#   sh benchmarks/configurations/tier1_each.sh PYTHON CHECKPOINT ROUTER --engine URL --engine URL
set -eu
python=$1 checkpoint=$2 router=$3
shift 3
code=0
for url in "$router" "$@" "$router"; do
    [ "$url" != --engine ] || continue
    "$python" -m optistack.cli conformance --endpoint "$url" --checkpoint "$checkpoint" --tier 1 --json || code=$?
done
exit $code

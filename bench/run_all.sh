#!/usr/bin/env bash
# Measures everything, about six minutes on a quiet machine, and writes the page about performance.
#
#   bench/run_all.sh [FOLDER]    FOLDER: for what is measured; default build/performance
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=${1:-build/performance}
mkdir -p "$out"
rm -f "$out"/*.json
# measure
python3 bench/machine.py >"$out/machine.json"
build/bin/bench_all_reduce --ranks 2 --json "$out/all_reduce_2.json"
build/bin/bench_all_reduce --ranks 4 --rounds 3 --json "$out/all_reduce_4.json"
build/bin/bench_ddp --ranks 2 --steps 30 --startup 5 --json "$out/ddp.json"
# report
python3 bench/report.py "$out"

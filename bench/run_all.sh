#!/usr/bin/env bash
# Measures everything, about a quarter of an hour on a quiet machine, and writes the page about performance. As root it
# also compares between hosts, which network namespaces stand for.
#
#   bench/run_all.sh [FOLDER]    FOLDER: for what is measured; default build/performance
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=${1:-build/performance}
mkdir -p "$out"
rm -f "$out"/*.json
# measure
python3 bench/machine.py >"$out/machine.json"
sizes=4,16,64,256,1024,4096,16384,65536,262144,1048576,4194304,16777216,26214400,67108864,104857600
build/bin/bench_all_reduce --ranks 2 --sizes $sizes --json "$out/all_reduce_2.json"
build/bin/bench_all_reduce --ranks 4 --sizes $sizes --rounds 3 --json "$out/all_reduce_4.json"
for op in all_gather reduce_scatter broadcast all_to_all; do
  build/bin/bench_all_reduce --op $op --sizes 1024,65536,1048576,16777216 --rounds 3 --json "$out/$op.json"
done
build/bin/bench_all_reduce --dtype bfloat16 --sizes 1024,65536,1048576,16777216 --rounds 3 --json "$out/bfloat16.json"
for mbit in $([ "$(id -u)" = 0 ] && echo 1000 0); do
  python3 bench/on_hosts.py make --mbit $mbit -- build/bin/bench_all_reduce --ranks 4 --rounds 3 \
    --sizes 4,1024,65536,1048576,16777216,67108864 --json "$out/hosts_$mbit.json"
done
build/bin/bench_checks --json "$out/checks.json"
build/bin/bench_ddp --ranks 2 --steps 30 --startup 5 --json "$out/ddp.json"
build/bin/bench_ddp --ranks 4 --steps 10 --rounds 2 --json "$out/ddp_4.json"
# report
python3 bench/report.py "$out"

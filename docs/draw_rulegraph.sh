#!/usr/bin/env bash
# Draw docs/images/rulegraph.png from the demo's rules. Needs Graphviz (dot, tred).
set -euo pipefail
cd "$(dirname "$0")/.."
graph=$(.venv/bin/snakemake --rulegraph --configfile config/demo.yaml -- all)
# The plan, which every table reads, would only add lines.
plan=$(sed -n 's/^\t\([0-9]*\)\[label = "write_plan".*/\1/p' <<<"$graph")
sed -e "/^\t$plan\[/d; /^\t$plan ->/d" \
    -e 's/color = "[^"]*", style="rounded"/color="#4477aa", style=rounded/' <<<"$graph" |
    tred | dot -Tpng -Gdpi=80 >docs/images/rulegraph.png

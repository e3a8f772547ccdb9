#!/usr/bin/env bash
# Crashes on a simulated disk, for as many seeds as there is time for.
#
#   bash test/soak.sh                     10000 seeds from 1000
#   bash test/soak.sh 50000 70000         50000 seeds from 70000
#   JOBS=2 bash test/soak.sh              so many at a time; as many as cores
#   bash test/soak.sh server              crashes of a real server: soak_server.sh
#   bash test/soak.sh stress              writes to one, for ten minutes
#
# Says how far it is, which seeds failed, how each is run again, how many power
# failures there were and states compared, and ends with 1 if any seed failed.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
case ${1:-} in
	server | stress) exec bash "$top/test/soak_server.sh" "$@" ;;
esac
count=${1:-10000}
first=${2:-1000}
jobs=${JOBS:-$(nproc)}
step=100
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

make -C "$top/test/unit" -s -j"$jobs" VARIANTS=plain TESTS=test_sim all
program=$top/build/unit/plain/test_sim

run() {
	local from=$1 n=$2 status=0
	"$program" "$from" "$n" >"$dir/$from" 2>&1 || status=$?
	if [ "$status" = 0 ]; then
		echo "seeds $from to $((from + n - 1)): $(tail -n 1 "$dir/$from")"
	else
		{
			grep -E '^seed .* failed' "$dir/$from" ||
				echo "seeds $from to $((from + n - 1)) ended with status $status"
		} | tee -a "$dir/failed"
	fi
}
export -f run
export program dir

for ((from = first; from < first + count; from += step)); do
	left=$((first + count - from))
	echo "$from $((left < step ? left : step))"
done | xargs -P "$jobs" -L 1 bash -c 'run "$0" "$1"'

grep -h 'power failures' "$dir"/[0-9]* | awk '
	{
		gsub(",", "")
		for (i = 2; i < NF; i++)
			if ($(i) == "power")
				crashes += $(i - 1)
			else if ($(i) == "states")
				states += $(i - 1)
			else if ($(i) == "consolidations")
				runs += $(i - 1)
	}
	END {
		printf "%d power failures, %d states compared, %d consolidations\n",
			crashes, states, runs
	}'
if [ -e "$dir/failed" ]; then
	echo "$(wc -l <"$dir/failed") failures; run one again with"
	echo "  NAVIS_SIM_LOG=1 $program SEED 1"
	exit 1
fi
echo "$count seeds, none failed"

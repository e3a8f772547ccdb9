#!/usr/bin/env bash
# The tools from end to end on small data: every workload runs, says what it
# promises to say, and leaves the index as it was.  TAP output.
#
#	test_tools.sh DIRECTORY-OF-PROGRAMS

set -uo pipefail

bin=$(cd "$1" && pwd)
run=$(realpath "$(dirname "$0")/../run.sh")
dir=$(mktemp -d "${TMPDIR:-/tmp}/navis-tools-XXXXXX")
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
n=0 failed=0

ok() { # STATUS NAME
	n=$((n + 1))
	if [ "$1" = 0 ]; then
		echo "ok $n - $2"
	else
		echo "not ok $n - $2"
		failed=1
		sed 's/^/# /' out 2>/dev/null
	fi
}

# check NAME COMMAND...: it must succeed; its output is in `out`.
check() {
	local name=$1
	shift
	"$@" >out 2>&1
	ok $? "$name"
}

# says NAME REGEX
says() { grep -qE "$2" out; ok $? "$1"; }

# refuses NAME REGEX COMMAND...: it must fail, and say why.
refuses() {
	local name=$1 regex=$2
	shift 2
	if "$@" >out 2>&1; then ok 1 "$name"; else
		grep -qE "$regex" out
		ok $? "$name"
	fi
}

# misuse NAME REGEX COMMAND...: status 2, and only a message on standard error.
misuse() {
	local name=$1 regex=$2 status
	shift 2
	"$@" >out 2>err
	status=$?
	[ $status = 2 ] && [ ! -s out ] && grep -qE -- "$regex" err &&
		grep -q -- "--help" err
	status=$?
	cat err >>out
	ok $status "$name"
}

# helps REGEX PROGRAM [MODE]: --help ends well, and says that.
helps() {
	local regex=$1 program=$2
	shift 2
	"$bin/$program" "$@" --help >out 2>err
	[ $? = 0 ] && [ ! -s err ] && grep -q "^usage: $program " out &&
		tr -s '\n ' ' ' <out | grep -qE -- "$regex"
	ok $? "$program${1:+ $*} --help"
}

# number KIND NAME: of the last such line of JSON.
number() {
	grep "\"kind\": \"$1\"" run.json | tail -n 1 |
		sed -n "s/.*\"$2\": \([0-9.eE+-]*\).*/\1/p"
}

# holds NAME AWK-CONDITION
holds() { awk "BEGIN { exit !($2) }"; ok $? "$1"; }

fingerprint() { find idx -type f -exec md5sum {} + | sort -k 2; }

helps "-K N neighbours of a query \(1 to 1000, default 10\) \[gt batch-gt\]" \
	navis_convert
helps "-o OUT .* \(needed\) -K" navis_convert gt
helps "-R N edges of a vertex, at most \(4 to 512, default 96\)" navis_build
helps "--cache-gb GIB .*default 16\)" navis_bench
helps "--cache-shares LIST .*default 5,10,25\)" navis_layout
helps "--shares LIST .*default 5,10,25,50\)" navis_cache
helps "--window N .* \[replace; needed\]" engine_bench
helps "--rate N rows a second; .*default 0\) \[mixed\]" sql_bench
helps "--using METHOD access method \(needed\)" sql_bench build
for tool in navis_convert navis_build navis_bench navis_layout navis_cache \
	engine_bench sql_bench; do
	misuse "$tool without anything" "$tool: .*(missing|expected)" "$bin/$tool"
done
misuse "no such option" "'--batches'" "$bin/navis_bench" -i x -q x --batches 3
misuse "an option without its value" "argument" "$bin/navis_build" -d x -o
misuse "no number" "^navis_bench: --cache-gb: \"ten\": a number from 0 to" \
	"$bin/navis_bench" -i x -q x --cache-gb ten
misuse "a number with a tail" "^navis_bench: L: \"40k\"" \
	"$bin/navis_bench" -i x -q x 40k
misuse "a number out of its range" "-K: \"0\": a number from 1 to 1000" \
	"$bin/navis_bench" -i x -q x -K 0
misuse "a number below none" "--rows: \"-1\"" "$bin/sql_bench" load t \
	--base x --rows -1
misuse "a list with a hole" "--shares: .*separated by commas" \
	"$bin/navis_cache" x --shares 5,,10
misuse "no such mode" "^sql_bench: lode: one of load build" "$bin/sql_bench" lode t
misuse "an option of another mode" "--query: is not an option of this mode" \
	"$bin/sql_bench" load t --base x --query x
misuse "what a mode needs" "^engine_bench: --truth: is missing" \
	"$bin/engine_bench" search x --base x --query x
misuse "one file too many" "^navis_convert: c: is no option" \
	"$bin/navis_convert" subset a b c
misuse "options that go together" "--insert-data and --rows" \
	"$bin/navis_layout" -i x -q x --rows 10

check "run.sh --help" bash "$run" --help
says "run.sh names its options" "^  --rows N "
misuse "run.sh: no such size" "^smal: one of small, medium" bash "$run" smal
for rows in 999 1e6 -5 99999999999 ""; do
	misuse "run.sh --rows '$rows'" "^--rows: a number from 1000" bash "$run" \
		small --rows "$rows"
done
misuse "run.sh: no such part" "^--parts: sqll: some of" bash "$run" small \
	--parts "engine sqll"
misuse "run.sh: no such method" "^--methods: diskann: some of" bash "$run" small \
	--methods "navis diskann"
misuse "run.sh: a peer without its checkout" "need --pgvector" bash "$run" small \
	--methods "navis hnsw"
misuse "run.sh: a file that is not there" "^none: does not exist" bash "$run" \
	small --data none --query none

check "generate rows" "$bin/navis_convert" generate data.fbin --count 4000 --dim 96
check "generate queries" "$bin/navis_convert" generate query.fbin \
	--count 50 --dim 96 --stream query
check "a prefix" "$bin/navis_convert" subset data.fbin base.fbin --count 3000
check "again by numbers" "$bin/navis_convert" generate tail.fbin \
	--first 1000 --count 2000 --dim 96
"$bin/navis_convert" subset data.fbin part.fbin --first 1000 --count 2000 >out
cmp -s part.fbin tail.fbin
ok $? "a row depends on its number only"
check "another format" "$bin/navis_convert" subset base.fbin base.fvecs
check "and back" "$bin/navis_convert" subset base.fvecs back.fbin
cmp -s base.fbin back.fbin
ok $? "formats lose nothing"
check "truth of moving data" "$bin/navis_convert" batch-gt data.fbin query.fbin \
	--index-npts 3000 --total-npts 4000 --batch 500 -o gt --delete-o gtd
says "six files" "^6 files"
cmp -s gt_0.bin gtd_0.bin
ok $? "both workloads begin with the same truth"
check "truth of a file" "$bin/navis_convert" gt base.fbin query.fbin -o whole.bin
cmp -s gt_0.bin whole.bin
ok $? "one block or many: the same truth"
refuses "too small a budget" "need .* GB" "$bin/navis_convert" gt base.fbin \
	query.fbin -o none.bin --mem-budget 0.0001
head -c 5000 data.fbin >cut.fbin
refuses "a file that was cut off" "has 5000 bytes, expected" \
	"$bin/navis_convert" info cut.fbin
refuses "a subset too large" "fewer rows" "$bin/navis_convert" subset \
	base.fbin none.fbin --count 3001

check "build" "$bin/navis_build" -d base.fbin -o idx -R 32 -L 60 \
	--warmup-queries 100 --json run.json
says "what was built" "rows 3000, vertices 3000"
refuses "a build that does not fit" "build_memory" "$bin/navis_build" \
	-d base.fbin -o unfit --mem-budget 0.0001
[ ! -e unfit ]
ok $? "nothing is left of it"
refuses "no second build there" "exists" "$bin/navis_build" -d base.fbin -o idx
bench=("$bin/navis_bench" -i idx -q query.fbin --search-threads 2
	--insert-threads 2 --cache-gb 0.01 --warmup-queries 100 --json run.json)
fingerprint >before
check "search only" "${bench[@]}" -g gt --num-batches 0 --warmup-passes 2 20 100
says "two list sizes" "^L 100: .*recall"
# 3,000 rows of 96 dimensions at list size 100: below this something is broken.
holds "recall of the search" "$(number search recall) >= 0.95"
fingerprint | cmp -s - before
ok $? "a search leaves the index as it was"
for switch in load-all fixed-stages from-medoid single-lists plain-lru; do
	check "ablation $switch" "${bench[@]}" -g gt --num-batches 0 "--$switch" 100
	holds "recall with it" "$(number search recall) >= 0.95"
done

batches=(--insert-data data.fbin --batch-size 500 --num-batches 2
	--first-wait 0 --pause 0 --search-L 100)
check "insertion beside searches" "${bench[@]}" "${batches[@]}" -g gt
says "rate and latency" \
	"^Batch 1 done in .* vectors/s, an insertion mean .*, P50 .*, P99 .* ms"
holds "latencies are in order" \
	"0 < $(number batch insert_p50_ms) && $(number batch insert_p50_ms) <= $(number batch insert_p99_ms)"
says "a pass beside" "^\[ .*inserted [0-9]+ of 500, .* QPS"
says "the run" "^--- Inserted: 1000 vectors"
# Against the truth of the rows there are, new ones included.
holds "recall after the batches" "$(number after recall) >= 0.95"
holds "the entrance graph grows" "$(number batch promotions) > 0"
holds "all rows are in the graph" "$(number batch vertices) == 4000"
fingerprint | cmp -s - before
ok $? "batches leave the index as it was"
[ ! -e idx_shadow ]
ok $? "the shadow is gone"
check "insertion alone" "${bench[@]}" "${batches[@]}" --insert-only \
	--static-entrance
holds "no promotion with a static entrance" "$(number batch promotions) == 0"
check "a sliding window" "${bench[@]}" "${batches[@]}" -g gtd --workload-change
says "the run replaces" "^--- Replaced: 1000 vectors"
holds "recall in the window" "$(number after recall) >= 0.95"
holds "as many are deleted" "$(number batch deleted) == 1000"
check "a sliding window, consolidated" "${bench[@]}" "${batches[@]}" -g gtd \
	--workload-change --consolidate
holds "vertices are freed" "$(number consolidation freed) == 500"
holds "none is left deleted" "$(number consolidation deleted) == 0"
holds "recall in the consolidated window" "$(number after recall) >= 0.95"
refuses "more batches than rows" "fewer rows" "${bench[@]}" "${batches[@]}" \
	--num-batches 3 --insert-only
[ ! -e idx_shadow ]
ok $? "before a shadow is made"


# Cache policies: the lookups of a run, replayed.
check "a record of lookups" "${bench[@]}" "${batches[@]}" --cache-policy reference \
	--cache-gb 0.0002 --cache-trace lookups.trace
check "policies compared" "$bin/navis_cache" lookups.trace --shares 10,30 \
	--json run.json
hits() { sed -n "s/.*\"cache_policy\".*\"share\": 30, .*\"policy\": \"$1\", \"hits\": \([0-9.]*\).*/\1/p" run.json; }
for policy in navis reference lru; do
	holds "none is better than the best ($policy)" \
		"0 < $(hits $policy) && $(hits $policy) <= $(hits best)"
done
head -c 1003 lookups.trace >cut.trace
refuses "a record that was cut off" "is cut off" "$bin/navis_cache" cut.trace
refuses "no such policy" "navis, reference or lru" "${bench[@]}" --cache-policy mru

# Other layouts, counted: a packed record is a page, a list is far less.
check "layouts" "$bin/navis_layout" -i idx -q query.fbin --insert-data data.fbin \
	--rows 200 --search-L 100 --cache-shares 5,50 --json run.json
says "it says that it counts" "^Counted, not measured"
pages() { sed -n "s/.*\"layout\": \"$1\", \"operation\": \"$2\".*\"pages\": \([0-9.]*\).*/\1/p" run.json | tail -n 1; }
for operation in search seek; do
	holds "placement saves pages ($operation)" \
		"$(pages 'variable, placed' $operation) < $(pages 'variable, random' $operation)"
	holds "longer slots, more pages ($operation)" \
		"$(pages 'fixed, placed' $operation) >= $(pages 'variable, placed' $operation)"
done
fingerprint | cmp -s - before
ok $? "counting leaves the index as it was"

echo "1..$n"
exit $failed

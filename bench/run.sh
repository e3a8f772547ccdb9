#!/usr/bin/env bash
# Repeats the evaluation on this machine: engine, ablations, SQL beside peers.
#
#   bash bench/run.sh small|medium|large|tiny [options]
#
#   --out DIR        results (bench/results/DATE-SIZE): report.md, plots, raw data
#   --work DIR       data and indexes are made, and kept, there (a scratch
#                    directory, removed at the end); on the SSD to be measured
#   --data FILE      vectors instead of generated ones; --query FILE with them
#   --pgvector DIR   your own checkout of pgvector; a copy is built and installed
#   --rows N         rows instead of the size's, 1000 or more; with fewer, batches
#                    are smaller in proportion
#   --methods LIST   access methods of the SQL part, of "navis hnsw ivfflat" (navis,
#                    and hnsw when pgvector is there)
#   --no-limit       without the parts under a memory limit
#   --parts LIST     some of "engine ablations sql" (all; large: engine ablations)
#   --help           prints this
#
# tiny: tries the script out, figures mean nothing;
# small: 30,000 rows of 768 dimensions, 56,000 in SQL, below 20 minutes on two
# idle cores; medium: a million, an hour or two; large: the reference's recipe
# (50M rows, 10M insertions, 22 + 10 threads).  A build holds its rows in memory:
# 3.9 kB each of 768 dimensions, 193 GB for large, which takes 550 GB of disk.
# What the machine has not is said before anything is made.
#
# A step that fails is named on the terminal and in the report, the others go on,
# and the exit status is 1; wrong options end with 2.  Installs what is missing
# from Debian.  A private server runs in a scratch directory; nothing is left
# running.  limits.sh tells what the memory limit needs; where it cannot be had,
# those parts are left out and the report says so.

. "$(dirname "$0")/../test/lib.sh"
. "$(dirname "$0")/limits.sh"

usage() { sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; }
wrong() { say "$*"; say "bash bench/run.sh --help lists the options"; exit 2; }

case " $* " in *" --help "*) usage; exit 0 ;; esac
size=${1:-}
case $size in
	small | medium | large | tiny) shift ;;
	*) wrong "${size:+$size: }one of small, medium, large, tiny expected" ;;
esac
out= work= data= query= pgvector= parts= methods= no_limit= only_rows=
limited_sweep=
while [ $# -gt 0 ]; do
	case $1 in
		--out | --work | --data | --query | --pgvector | --parts | --methods)
			[ -n "${2:-}" ] || wrong "$1 needs a value"
			printf -v "${1#--}" %s "$2"
			shift 2
			;;
		--rows)
			[[ ${2:-} =~ ^[0-9]{1,10}$ ]] && [ "$2" -ge 1000 ] &&
				[ "$2" -le 4000000000 ] ||
				wrong "--rows: a number from 1000 to 4000000000 expected"
			only_rows=$((10#$2))
			shift 2
			;;
		--no-limit) no_limit=1; shift ;;
		*) wrong "unknown: $1" ;;
	esac
done

# only LIST NAME...: nothing else is in the list.
only() {
	local option=$1 word
	for word in $2; do
		case " ${*:3} " in
			*" $word "*) ;;
			*) wrong "$option: $word: some of \"${*:3}\" expected" ;;
		esac
	done
}
only --parts "$parts" engine ablations sql
only --methods "$methods" navis hnsw ivfflat
case "$pgvector $methods" in
	" "*hnsw* | " "*ivfflat*) wrong "--methods: hnsw and ivfflat need --pgvector" ;;
esac

# rows, rows a batch, batches, queries; rows of the drifting set before it drifts;
# rows in SQL, where they are others
dim=768 sql_rows=
case $size in
	tiny)
		rows=3000 batch=300 batches=2 queries=50 drift=2000 spare=4000 dim=96
		search_threads=2 insert_threads=1 warm=1 cadence=(--first-wait 0 --pause 0)
		sweep=(20 40) sql_sweep=40,100 rate=100
		;;
	small)
		rows=30000 batch=1500 batches=3 queries=300 drift=10000 spare=6000
		search_threads=2 insert_threads=1 warm=2 cadence=(--first-wait 1 --pause 0.5)
		sweep=(20 40 80 160) sql_sweep=20,40,100,200 rate=50
		limited_sweep=40,100 # what reads from disk for each query takes long
		sql_rows=56000       # a quarter of fewer is less than processes hold
		;;
	medium)
		rows=1000000 batch=20000 batches=10 queries=1000 drift=200000 spare=100000
		search_threads=$(nproc) insert_threads=$((($(nproc) + 1) / 2)) warm=10
		cadence=() sweep=(20 40 60 80 160) sql_sweep=20,40,100,200,400 rate=200
		limited_sweep=40,100,200
		;;
	large)
		rows=50000000 batch=100000 batches=100 queries=10000 drift=1000000
		search_threads=22 insert_threads=10 warm=10 cadence=() spare=100000
		sweep=(20 40 60 80) sql_sweep=40,100,200 rate=200
		parts=${parts:-engine ablations}
		;;
esac
parts=${parts:-engine ablations sql}
# in_proportion NUMBER LEAST
in_proportion() {
	local n=$(($1 * only_rows / rows))
	echo $((n < $2 ? $2 : n))
}
if [ -n "$only_rows" ] && [ "$only_rows" -lt "$rows" ]; then
	batch=$(in_proportion "$batch" 100) spare=$(in_proportion "$spare" 1000)
	drift=$(in_proportion "$drift" 2000)
fi
rows=${only_rows:-$rows}
sql_rows=${only_rows:-${sql_rows:-$rows}}
limited_sweep=${limited_sweep:-$sql_sweep}
for file in "$data" "$query" "$pgvector"; do
	[ -z "$file" ] || [ -e "$file" ] || wrong "$file: does not exist"
done
[ -n "$data" ] || [ -z "$query" ] || wrong "--query needs --data FILE"
[ -z "$data" ] || [ -n "$query" ] || wrong "--data needs --query FILE"
[ -z "$pgvector" ] || [ -e "$pgvector/vector.control" ] ||
	wrong "$pgvector: no checkout of pgvector"
[ -z "$pgvector" ] || pgvector=$(cd "$pgvector" && pwd)
[ -z "$data" ] || { data=$(realpath "$data"); query=$(realpath "$query"); }
out=${out:-$top/bench/results/$(date +%F)-$size}

# --- scratch -----------------------------------------------------------------

need_server
install_packages pkg-config libhdf5-dev libpq-dev python3-matplotlib
dir=$(scratch_dir bench)
keep_work=$work
work=${work:-$dir/work}
mkdir -p "$work"
work=$(cd "$work" && pwd)
server=
cleanup() {
	local status=$?
	trap - EXIT
	set +e
	[ -z "$server" ] || stop_server "$dir"
	limit_end
	[ $status = 0 ] || as_root tail -n 20 "$dir/server.log" >&2 2>/dev/null
	as_root rm -rf "$dir"
	[ -n "$keep_work" ] || rm -rf "$work"
	[ $status = 0 ] || say "run.sh FAILED (status $status)"
	exit $status
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

say "$(date +%T) building"
build_in "$dir" >&2
make -C "$dir/src/bench" -s -j"$(nproc)" PG_CONFIG="$PG_CONFIG" all >&2
bin=$dir/src/build/bench

# Own data: its dimensions; formats that only the engine's tools read are
# converted.
if [ -n "$data" ]; then
	own_data=$(basename "$data")
	file_rows='s/.*: ([0-9]+) rows of ([0-9]+) .*/\1 \2/'
	info=$("$bin/navis_convert" info "$data" | sed -E "$file_rows")
	read -r data_rows dim <<<"$info"
	info=$("$bin/navis_convert" info "$query" | sed -E "$file_rows")
	read -r queries query_dim <<<"$info"
	[ "$dim" = "$query_dim" ] ||
		wrong "$query has $query_dim dimensions, $data has $dim"
	need=$((rows > sql_rows ? rows : sql_rows))
	need=$((need + batches * batch + spare))
	[ "$data_rows" -ge $need ] ||
		wrong "$data has $data_rows rows; --rows $rows takes $need, inserted ones included"
else
	own_data=
fi

# A build holds vectors, edges and more of all its rows in memory.  On disk:
# data, index and what is like it, a random placement or a shadow.
build_bytes() { echo $(($1 * (4 * dim + 4 * 96 + 400))); }
fits() {
	local need has
	has=$(awk '/MemTotal/ { print $2 }' /proc/meminfo)
	has=$((has * 1024 / 4 * 3))
	need=$(build_bytes "$rows")
	[ "$need" -le $has ] ||
		wrong "a build over $rows rows takes $((need / 1000000000)) GB of memory, and 75 % of what is here are $((has / 1000000000)): --rows $((has / $(build_bytes 1000) * 1000)) or fewer fit"
	need=$(((4 * dim * 23 / 10 + 600) * (rows + batches * batch)))
	[ -n "$own_data" ] || need=$((need + 4 * dim * (rows + batches * batch + spare)))
	# Table, indexes, WAL.
	case " $parts " in *" sql "*) need=$((need + 4 * dim * sql_rows * 6)) ;; esac
	has=$(df -B1 --output=avail "$work" | tail -n 1)
	[ $need -le "$has" ] ||
		wrong "the run takes $((need / 1000000000)) GB of disk, and $work has $((has / 1000000000))"
}
fits
mkdir -p "$out"
out=$(cd "$out" && pwd)
rm -f "$out"/{facts,engine,driver,sql}.jsonl

part() { case " $parts " in *" $1 "*) true ;; *) false ;; esac; }
title() { say "$(date +%T) $1"; echo "== $1" >>"$out/log.txt"; }
: >"$out/log.txt"

# The log is without the places of this machine.
hide() { sed "s|$bin/||g; s|$work|WORK|g; s|$out|OUT|g; s|$dir|SCRATCH|g"; }

# ran COMMAND...: into the log.
ran() {
	hide <<<"\$ $*" >>"$out/log.txt"
	"$@" | hide >>"$out/log.txt" || { tail -n 5 "$out/log.txt" >&2; return 1; }
}

# step NAME COMMAND...: as itself would run, but its failure does not end the run.
# Not to be called from a condition, where the shell would not stop at errors.
failures=()
step() {
	local name=$1 status
	shift
	set +e
	(
		trap - EXIT
		set -e
		"$@"
	)
	status=$?
	set -e
	[ $status -lt 128 ] || exit $status # interrupted
	[ $status = 0 ] || failed "$name"
}

failed() { # NAME
	failures+=("$1")
	say "$(date +%T) FAILED: $1 (log.txt has its output)"
	echo "== FAILED: $1" >>"$out/log.txt"
	fact "failed" "$1"
}

# fact NAME VALUE: about machine and run, for the report.
fact() {
	printf '{"kind": "fact", "name": "%s", "value": "%s"}\n' "$1" \
		"$(sed 's/\\/\\\\/g; s/"/\\"/g' <<<"$2")" >>"$out/facts.jsonl"
}

package() { dpkg-query -W -f='${Version}' "$1" 2>/dev/null || echo "not there"; }

facts() {
	local commit
	commit=$(git -C "$top" rev-parse --short HEAD 2>/dev/null || echo unknown)
	[ -z "$(git -C "$top" status --porcelain 2>/dev/null)" ] ||
		commit+=", with changes"
	fact size "$size"
	fact date "$(date +%F)"
	fact processor "$(lscpu | sed -n 's/^Model name: *//p'), $(nproc) cores"
	fact memory "$(awk '/MemTotal/ { printf "%.1f GiB", $2 / 1048576 }' /proc/meminfo)"
	fact kernel "$(uname -sr)"
	fact disk "$(findmnt -no FSTYPE,SOURCE -T "$work" | awk '{ sub(".*/", "", $2); print $1 " on " $2 }')"
	fact "load before" "$(cut -d' ' -f1-3 /proc/loadavg)"
	fact navis "commit $commit"
	fact compiler "$(cc --version | head -n 1)"
	fact PostgreSQL "$("$PG_CONFIG" --version)"
	fact liburing "$(package liburing2)"
	fact OpenBLAS "$(package libopenblas0-pthread)"
	[ -z "$pgvector" ] || fact pgvector "$(sed -n \
		"s/^default_version = '\(.*\)'/\1/p" "$pgvector/vector.control")"
	fact command "bash bench/run.sh $size${pgvector:+ --pgvector CHECKOUT}${only_rows:+ --rows $only_rows}${no_limit:+ --no-limit} --parts \"$parts\""
	fact data "${own_data:-generated, seed 42}, $rows rows of $dim dimensions$([ "$sql_rows" = "$rows" ] || echo " ($sql_rows in SQL)"), $batches batches of $batch, $queries queries"
}

# --- data --------------------------------------------------------------------

make_data() {
	local made="$rows $batch $batches $spare $queries $dim $drift ${own_data:-42}"
	title "data and exact neighbours"
	if [ -e "$work/made" ] && [ "$(cat "$work/made")" != "$made" ]; then
		say "$work holds the data of another size: remove it, or name another --work"
		exit 1
	fi
	echo "$made" >"$work/made"
	if [ -n "$own_data" ]; then
		case $data in
			*.fbin) ;;
			*)
				[ -e "$work/data.fbin" ] ||
					ran "$bin/navis_convert" subset "$data" "$work/data.fbin"
				[ -e "$work/query.fbin" ] ||
					ran "$bin/navis_convert" subset "$query" "$work/query.fbin"
				data=$work/data.fbin query=$work/query.fbin
				;;
		esac
	else
		data=$work/data.fbin query=$work/query.fbin
		[ -e "$data" ] || ran "$bin/navis_convert" generate "$data" \
			--count $((rows + batches * batch + spare)) --dim $dim
		[ -e "$query" ] || ran "$bin/navis_convert" generate "$query" \
			--count "$queries" --dim $dim --stream query
	fi
	[ -e "$work/gtd_0.bin" ] || ran "$bin/navis_convert" batch-gt "$data" "$query" \
		--index-npts "$rows" --total-npts $((rows + batches * batch)) \
		--batch "$batch" -o "$work/gt" --delete-o "$work/gtd"
}

vector_bytes() { echo $((rows * dim * 4)); }
gb_of() { awk "BEGIN { printf \"%.6f\", $1 / 1073741824 }"; }

# --- engine ------------------------------------------------------------------

built() { # NAME DATA OPTIONS...
	local name=$1 from=$2
	shift 2
	[ -e "$work/$name/rows.journal" ] || {
		rm -rf "${work:?}/$name"
		ran "$bin/navis_build" -d "$from" -o "$work/$name" -R 96 -L 100 \
			--json "$out/engine.jsonl" "$@"
	}
}

# The reference's share: 16 GB of cache for 154 GB of vectors.
cache_gb() { gb_of "$(($(vector_bytes) / 10))"; }

bench() { # LABEL OPTIONS...
	local label=$1
	shift
	say "$(date +%T)   $label"
	ran "$bin/navis_bench" -i "$work/index" -q "$query" \
		--search-threads "$search_threads" --insert-threads "$insert_threads" \
		--cache-gb "$(cache_gb)" --json "$out/engine.jsonl" --label "$label" "$@"
}

moving=() # options of every run with batches
engine_part() {
	title "engine"
	step "the engine's index" built index "$data" --count "$rows"
	step search bench search -g "$work/gt" --num-batches 0 \
		--warmup-passes $warm "${sweep[@]}"
	step insert bench insert -g "$work/gt" "${moving[@]}"
	step insert-only bench insert-only "${moving[@]}" --insert-only
	step window bench window -g "$work/gtd" "${moving[@]}" --workload-change
	step window-consolidated bench window-consolidated -g "$work/gtd" \
		"${moving[@]}" --workload-change --consolidate
	limited_engine
}

# What processes hold whatever the rows, up to 34 MB of it edge pages that
# insertion has not written yet, and for each row (codes, map, elements): below
# the sum, the limit kills them.
held_fixed=88000000 held_row=300

# limit_of WHAT BYTES: sets bytes to a quarter, all that processes hold included,
# or else to what they need; and note to what the report says of it.
limit_of() {
	local need=$((held_fixed + held_row * rows)) enough
	bytes=$(($2 / 4)) note=
	if [ $bytes -lt $need ]; then
		enough=$(awk "BEGIN { spare = $bytes / $rows - $held_row
			if (spare > 0)
				print \"--rows\", int($held_fixed / spare / 1000 + 1) * 1000, \"or more\"
			else
				print \"more dimensions\" }")
		note="a quarter, $((bytes / 1000000)) MB, is below what processes hold beside data: that takes $enough"
		say "memory limit of $((need / 1000000)) MB: $note"
		bytes=$need note=" ($note)"
	fi
	note="$((bytes / 1000000)) MB, $((bytes * 100 / $2)) % of $1$note"
}

# The reference's share of cache within the limit.
limited_engine() {
	local bytes note
	[ -z "$no_limit" ] || return 0
	limit_of "the vectors" "$(vector_bytes)"
	if ! limit_begin engine "$bytes"; then
		fact "memory limit of the engine" "none: control groups cannot be used here"
		return 0
	fi
	forget_cached "$work/index"
	if limited bench search-limited -g "$work/gt" --num-batches 0 \
		--warmup-passes $warm --cache-gb "$(gb_of $((bytes / 10)))" "${sweep[@]}" &&
		limited bench insert-limited -g "$work/gt" "${moving[@]}" \
			--cache-gb "$(gb_of $((bytes / 10)))"; then
		note+=", used at most $(($(limit_peak) / 1000000)) MB; cache a tenth of it"
	else
		note+="; failed, the limit killed $(limit_kills) processes"
		failed "engine under a memory limit"
		rm -rf "$work/index_shadow"
	fi
	fact "memory limit of the engine" "$note"
	limit_end
}

# --- ablations ---------------------------------------------------------------

# A shorter warm-up of the windows where the rerank is not the subject.
ablation() { bench "$1" --num-batches 0 --warmup-queries 200 "${@:2}"; }

ablations_part() {
	local switch w layout_rows=$((batches * batch))
	title "ablations"
	step "the engine's index" built index "$data" --count "$rows"
	# Without a cache every page looked at is a read.
	step "random placement" built random "$data" --count "$rows" \
		--random-placement
	for w in index random; do
		step "placement-$w" ablation "placement-$w" -i "$work/$w" -g "$work/gt" \
			--cache-gb 0 20 40 100
	done
	[ "$size" != large ] || rm -rf "$work/random"
	step entrance-medoid ablation entrance-medoid -g "$work/gt" --cache-gb 0 \
		--from-medoid 20 40 100
	step page-single ablation page-single -g "$work/gt" --cache-gb 0 \
		--single-lists 20 40 100
	for switch in "" --load-all --fixed-stages; do
		step "casr$switch" ablation "casr-${switch:---window}" -g "$work/gt" \
			$switch --warmup-queries 1000 40 100
	done
	for w in 90 99; do
		step "casr percentile $w" ablation "casr---percentile-$w" -g "$work/gt" \
			--casr-percentile-search $w --warmup-queries 1000 40 100
	done
	for w in 1 2 4 8 16; do
		step "beam-$w" ablation "beam-$w" -g "$work/gt" --cache-gb 0 \
			--beam-width $w 40 100
	done
	step "cache policies" cache_ablation
	step "drifting data" drift_ablation
	say "$(date +%T)   layouts"
	step layouts ran "$bin/navis_layout" -i "$work/index" -q "$query" \
		--insert-data "$data" --rows $((layout_rows < 10000 ? layout_rows : 10000)) \
		--cache-shares 2,5,10,25 --json "$out/engine.jsonl"
}

# Three policies at work, and, from a record of what the first one was asked for,
# at other sizes (not of the large run: the record would be).
cache_ablation() {
	local edges policy trace=()
	edges=$(find "$work/index" -name edges -exec stat -c %s {} +)
	[ "$size" = large ] || trace=(--cache-trace "$work/lookups.trace")
	for policy in navis reference lru; do
		bench "cache-$policy" -g "$work/gt" "${moving[@]}" \
			--cache-gb "$(gb_of $((edges / 4)))" --cache-policy $policy \
			"${trace[@]}"
		trace=()
	done
	[ "$size" = large ] || ran "$bin/navis_cache" "$work/lookups.trace" \
		--file-pages $((edges / 4096)) --shares 5,10,25,50 \
		--json "$out/engine.jsonl"
	rm -f "$work/lookups.trace"
}

# New rows from regions that the base lacks; every batch adds a tenth of it.
drift_ablation() {
	local more=$((drift / 10)) switch
	title "drifting data"
	[ -e "$work/drift.fbin" ] || ran "$bin/navis_convert" generate "$work/drift.fbin" \
		--count $((drift + 5 * more)) --dim $dim --seed 43 --drift-from "$drift"
	[ -e "$work/drift_query.fbin" ] || ran "$bin/navis_convert" generate \
		"$work/drift_query.fbin" --count "$queries" --dim $dim --seed 43 \
		--stream query
	[ -e "$work/gtdrift_0.bin" ] || ran "$bin/navis_convert" batch-gt \
		"$work/drift.fbin" "$work/drift_query.fbin" --index-npts "$drift" \
		--total-npts $((drift + 5 * more)) --batch "$more" -o "$work/gtdrift"
	built drift "$work/drift.fbin" --count "$drift"
	for switch in "" --static-entrance; do
		bench "drift-${switch:---dynamic}" -i "$work/drift" \
			-q "$work/drift_query.fbin" -g "$work/gtdrift" \
			--insert-data "$work/drift.fbin" --batch-size "$more" \
			--num-batches 5 --search-L 20 "${cadence[@]}" $switch
	done
}

# --- SQL ---------------------------------------------------------------------

ask() { psql -XAtq -v ON_ERROR_STOP=1 "$@"; }

# cell FILE ROW COLUMN: of a table that sql_bench printed, the row by its first
# cell (or number: "#2").
cell() {
	awk -F' *[|] *' -v want="$2" -v name="$3" '
		/^[|]/ && !head { for (i = 2; i < NF; i++) if ($i == name) c = i; head = 1; next }
		/^[|][-: |]*$/ { next }
		/^[|]/ { n++; if ($2 == want || want == "#" n) { print $c; exit } }' "$1"
}

# sql_fact METHOD SITUATION NAME VALUE [LIST]
sql_fact() {
	printf '{"kind": "sql", "method": "%s", "situation": "%s", "name": "%s", "value": %s, "L": %s}\n' \
		"$1" "$2" "$3" "${4:-null}" "${5:-null}" >>"$out/sql.jsonl"
}

# Of each method: table, index, type, operator class, what widens a search.
describe() {
	create=()
	case $1 in
		navis)
			type=real setting=navis.search_list_size sizes=$sql_sweep middle=100
			;;
		hnsw)
			type=vector setting=hnsw.ef_search sizes=$sql_sweep middle=100
			create=(--opclass vector_l2_ops)
			;;
		ivfflat)
			type=vector setting=ivfflat.probes sizes=1,4,16,64 middle=16
			create=(--opclass vector_l2_ops
				--with "lists = $(awk "BEGIN { print int(sqrt($rows)) }")")
			;;
		*) say "unknown method: $1"; return 1 ;;
	esac
	table=$1_t index=$1_i
}

situation= # of the method at hand, "METHOD SITUATION"
sql() { # NAME MODE OPTIONS...: the driver for the method at hand
	local name=$1 mode=$2
	shift 2
	echo "\$ sql_bench $mode $table $(sed "s|$work|WORK|g; s|$data|DATA|g" <<<"$*")" \
		>>"$out/log.txt"
	"$bin/sql_bench" "$mode" "$table" --type "$type" --label "$situation" \
		--json "$out/driver.jsonl" "$@" >"$dir/$name" \
		2>>"$out/log.txt" || { tail -n 2 "$out/log.txt" >&2; return 1; }
	cat "$dir/$name" >>"$out/log.txt"
}

# field LIST NUMBER: of the table of searches.
field() {
	awk -F' *[|] *' -v l="$1" -v n="$2" '$2 == l { print $n; exit }' "$dir/found"
}

# sql_searches METHOD SITUATION TRUTH
sql_searches() {
	local list
	situation="$1 $2"
	sql found search --query "$query" --truth "$3" --index "$index" \
		--sweep "$sizes" --setting "$setting" --clients 1,2 --passes 1 ||
		return 1
	sql_fact "$1" "$2" recall_middle "$(cell "$dir/found" "$middle" recall)"
	sql_fact "$1" "$2" qps_middle "$(cell "$dir/found" "$middle" "QPS, 2 cl.")"
	for list in ${sizes//,/ }; do
		sql_fact "$1" "$2" recall "$(cell "$dir/found" "$list" recall)" "$list"
		sql_fact "$1" "$2" qps "$(cell "$dir/found" "$list" "QPS, 2 cl.")" "$list"
		# The latency columns repeat; those of one client come first.
		sql_fact "$1" "$2" p50_ms "$(field "$list" 5)" "$list"
		sql_fact "$1" "$2" p99_ms "$(field "$list" 6)" "$list"
	done
}

# sql_inserts METHOD SITUATION FIRST ROWS: alone, by single-row INSERTs.
sql_inserts() {
	local linked=()
	[ "$1" != navis ] || linked=(--index "$index")
	situation="$1 $2"
	sql inserted insert --base "$data" --first "$3" --rows "$4" \
		--method rows "${linked[@]}" || return 1
	sql_fact "$1" "$2" insert_rate "$(cell "$dir/inserted" rows "rows/s linked")"
	sql_fact "$1" "$2" insert_mean "$(cell "$dir/inserted" rows "mean ms")"
	sql_fact "$1" "$2" insert_p50 "$(cell "$dir/inserted" rows "p50 ms")"
	sql_fact "$1" "$2" insert_p99 "$(cell "$dir/inserted" rows "p99 ms")"
}

# sql_mixed METHOD SITUATION FIRST: searches beside a steady stream of rows.
sql_mixed() {
	local linked=() round
	[ "$1" != navis ] || linked=(--index "$index")
	situation="$1 $2"
	sql mixed mixed --base "$data" --first "$3" --rows $((spare / 2)) \
		--query "$query" "${linked[@]}" --sweep "$middle" \
		--setting "$setting" \
		--clients 2 --passes 1 --rate "$rate" --batch 1 --rounds 2 || return 1
	for round in 1 2; do
		sql_fact "$1" "$2" qps_alone "$(cell "$dir/mixed" $round "QPS alone")"
		sql_fact "$1" "$2" qps_beside "$(cell "$dir/mixed" $round "QPS beside")"
		sql_fact "$1" "$2" p50_beside "$(cell "$dir/mixed" $round "p50 ms beside")"
		sql_fact "$1" "$2" p99_beside "$(cell "$dir/mixed" $round "p99 ms beside")"
		sql_fact "$1" "$2" rate_beside "$(cell "$dir/mixed" $round "rows/s inserted")"
		sql_fact "$1" "$2" insert_mean_beside "$(cell "$dir/mixed" $round "insert mean ms")"
		sql_fact "$1" "$2" insert_p50_beside "$(cell "$dir/mixed" $round "insert p50 ms")"
		sql_fact "$1" "$2" insert_p99_beside "$(cell "$dir/mixed" $round "insert p99 ms")"
	done
}

sql_resident() { # METHOD
	describe "$1"
	say "$(date +%T)   $1: load and build"
	situation="$1 resident"
	sql loaded load --base "$data" --rows "$rows"
	sql built build --index "$index" --using "$1" "${create[@]}"
	sql_fact "$1" resident build_seconds "$(cell "$dir/built" "#1" s)"
	sql_fact "$1" resident table_bytes "$(cell "$dir/built" "#1" "table bytes")"
	sql_fact "$1" resident index_bytes "$(index_bytes "$1")"
	say "$(date +%T)   $1: search"
	[ "$1" != navis ] || fact "navis in SQL" "$(ask -F ', ' -c "SELECT io_method, simd,
		search_threads || ' search threads', current_setting('navis.insert_threads')
		|| ' insert threads' FROM navis_index_info('$index')")"
	sql_searches "$1" resident "$work/gt_0.bin"
	say "$(date +%T)   $1: insert, delete, vacuum"
	sql_inserts "$1" resident "$rows" "$batch"
	sql_searches "$1" inserted "$work/gt_$batch.bin"
	situation="$1 deleted"
	sql gone delete --first 0 --rows "$batch"
	sql_fact "$1" deleted seconds "$(cell "$dir/gone" "#1" "DELETE s")"
	sql_fact "$1" deleted vacuum_seconds "$(cell "$dir/gone" "#1" "VACUUM s")"
	sql_searches "$1" deleted "$work/gtd_$batch.bin"
	say "$(date +%T)   $1: search beside insertion"
	sql_mixed "$1" resident $((rows + batches * batch))
}

index_bytes() {
	if [ "$1" = navis ]; then
		ask -c "SELECT edge_bytes + vector_bytes + state_bytes +
			pg_relation_size('$index') FROM navis_index_info('$index')"
	else
		ask -c "SELECT pg_relation_size('$index')"
	fi
}

sql_limited() { # METHOD
	describe "$1"
	[ "$1" = ivfflat ] || sizes=$limited_sweep
	say "$(date +%T)   $1 under the limit"
	sql_searches "$1" limited "$work/gtd_$batch.bin" &&
		sql_inserts "$1" limited $((rows + batch)) $((batch / 5)) &&
		sql_mixed "$1" limited $((rows + batches * batch + spare / 2))
}

# Server and peers, one after the other, within a quarter of table and index.
sql_under_limit() {
	local bytes all method note
	[ -z "$no_limit" ] || return 0
	for method in $methods; do
		describe "$method"
		all=$(($(ask -c "SELECT pg_table_size('$table')") + $(index_bytes "$method")))
		limit_of "table and index" "$all"
		if ! limit_begin "sql-$method" "$bytes"; then
			fact "memory limit of the server with $method" "none: control groups cannot be used here"
			return 0
		fi
		ask -c "ALTER SYSTEM SET shared_buffers = '$((bytes / 8 / 1048576))MB'"
		ask -c "ALTER SYSTEM SET navis.cache_size = '$((bytes / 16 / 1048576))MB'"
		stop_server "$dir"
		forget_cached "$dir/data"
		if limited restart_server "$dir" 2>/dev/null && sql_limited "$method"; then
			note+=", used at most $(($(limit_peak) / 1000000)) MB, page cache included; shared_buffers an eighth of it, navis.cache_size a sixteenth"
		else
			note+="; failed, the limit killed $(limit_kills) processes"
			failed "$method under a memory limit"
		fi
		fact "memory limit of the server with $method" "$note"
		end_limited_server
	done
}

# A server that the limit killed may be in the middle of its recovery, which the
# limit holds up, too: it is not asked to end but told to, and what then still
# runs in the group is killed with it.
end_limited_server() {
	as_server pg_ctl -D "$dir/data" -m immediate -w -t 20 -s stop ||
		say "the server under the limit does not end"
	limit_end
	as_root sh -c ": >'$dir/data/postgresql.auto.conf'"
	restart_server "$dir" 2>/dev/null
}

# The next step needs a server, whatever has become of it in the last one.
heal_server() {
	ask -c "SELECT 1" >/dev/null 2>&1 && return
	say "the server is not there: starting it again"
	as_server pg_ctl -D "$dir/data" -m immediate -w -t 20 -s stop 2>/dev/null || true
	restart_server "$dir" 2>/dev/null
}

# What is in SQL may be larger, then with files of its own.
sql_data() {
	[ "$sql_rows" != "$rows" ] || return 0
	rows=$sql_rows work=$work/sql
	mkdir -p "$work"
	make_data
}

sql_part() {
	local method settings build_mb
	title "SQL"
	sql_data
	build_mb=$(($(build_bytes "$rows") * 5 / 4 / 1048576))
	build_mb=$((build_mb < 2048 ? 2048 : build_mb))
	settings=("shared_buffers = 2GB" "max_wal_size = 16GB"
		"maintenance_work_mem = ${build_mb}MB" "max_parallel_maintenance_workers = 1"
		"navis.build_memory = ${build_mb}MB" "navis.build_threads = 2"
		"navis.cache_size = 256MB" "autovacuum = off")
	fact "server's settings" "$(printf '%s; ' "${settings[@]}")"
	start_server "$dir" "${settings[@]}"
	server=1
	ask -c "CREATE EXTENSION navis"
	: "${methods:=navis${pgvector:+ hnsw}}"
	if [ -n "$pgvector" ]; then
		mkdir -p "$dir/pgvector"
		(cd "$pgvector" && tar cf - --exclude=./.git .) |
			tar xf - -C "$dir/pgvector"
		make -C "$dir/pgvector" -s -j"$(nproc)" PG_CONFIG="$PG_CONFIG" >&2
		as_root make -C "$dir/pgvector" -s install PG_CONFIG="$PG_CONFIG" >/dev/null
		ask -c "CREATE EXTENSION vector"
	fi
	for method in $methods; do
		step "$method in SQL" sql_resident "$method"
		heal_server
	done
	sql_under_limit
	stop_server "$dir"
	server=
}

# --- the run -----------------------------------------------------------------

begun=$(date +%s)
facts
fact "engine alone" "$search_threads search threads and clients, $insert_threads insert threads, cache $(awk "BEGIN { printf \"%.1f\", $(vector_bytes) / 1e7 }") MB, a tenth of the vectors, unless said"
make_data
moving=(--insert-data "$data" --batch-size "$batch" --num-batches "$batches"
	"${cadence[@]}")
if part engine; then engine_part; fi
if part ablations; then ablations_part; fi
if part sql; then sql_part; fi # the last one: it may go on to other rows
fact "load after" "$(cut -d' ' -f1-3 /proc/loadavg)"
fact duration "$((($(date +%s) - begun) / 60)) minutes"
title "report"
python=/usr/bin/python3 # Debian's, which has the package
[ -x $python ] || python=python3
$python "$top/bench/plot.py" "$out"
say "$(date +%T) report: $out/report.md"
if [ ${#failures[@]} -gt 0 ]; then
	say "FAILED:$(printf ' "%s"' "${failures[@]}")"
	exit 1
fi

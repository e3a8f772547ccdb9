#!/usr/bin/env bash
# Measures what navis promises, on real data, and prints it as Markdown.
#
#   bash bench/measure.sh [options] [part...]
#
#   --data DIR       the glove100k_* files (.fbin and .ibin, as bench/common.h
#                    describes them); default $NAVIS_DATA
#   --pgvector DIR   sources of pgvector to compare builds with: your own
#                    checkout; a copy of it is built and installed
#   --out FILE       writes the report there too
#   --lists N,N,...  list sizes of the curve
#   --passes N       timed passes over the queries, of each line (3)
#   --pairs N        builds of each kind that are compared (3)
#   --updates SET    data of insert, replace and writes: glove100k, or synth768
#                    (768 dimensions, made by DIR/make_synthetic.py if the
#                    files are not there)
#   --quick          insert, replace and writes with fewer rows, one metric
#
# Parts, by default all:
#   curve     recall, speed and work by list size, by the engine and by SQL
#   casr      vectors loaded and recall by percentile of the rerank window
#   pages     edge pages with and without placement and entrance graph
#   memory    what an index holds in memory
#   nocache   without cache: bytes read against /proc, resident memory
#   build     build times beside pgvector's HNSW, and recall of both
#   insert    recall and files after as many rows again were inserted, beside a
#             fresh build; the engine alone
#   replace   the same after ten rounds in which a fifth of the rows is replaced
#   writes    INSERT, COPY and UPDATE through SQL, searches beside inserts;
#             pgvector's HNSW beside it
#   restart   seconds until the graph answers after kill -9
#   wal       bytes that the index writes into WAL a row
#
# A private server runs in a scratch directory; nothing is left but Debian
# packages and the installed extension.  The last section of the report says
# which targets were met.  Run it on an idle machine: an hour.

. "$(dirname "$0")/../test/lib.sh"

all_parts="curve casr pages memory nocache build insert replace writes restart wal"
lists=20,40,60,80,100,150,200,300,400
passes=3
pairs=3
updates=glove100k
quick=
data=${NAVIS_DATA:-}
pgvector=
out=
parts=

usage() { sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; exit "$1"; }

while [ $# -gt 0 ]; do
	case $1 in
		--quick) quick=1; shift ;;
		--data | --pgvector | --out | --lists | --passes | --pairs | --updates)
			[ $# -ge 2 ] || usage 2
			printf -v "${1#--}" %s "$2"
			shift 2
			;;
		-h | --help) usage 0 ;;
		*)
			case " $all_parts " in
				*" $1 "*) parts+=" $1" ;;
				*) say "unknown: $1"; usage 2 ;;
			esac
			shift
			;;
	esac
done
parts=${parts:-$all_parts}

[ -n "$data" ] || { say "where is the data?  --data DIR or NAVIS_DATA"; exit 2; }
for file in base.fbin query.fbin gt_l2.ibin gt_cosine.ibin; do
	[ -r "$data/glove100k_$file" ] ||
		{ say "$data/glove100k_$file is missing: --data DIR"; exit 2; }
done
data=$(cd "$data" && pwd)
glove=$data/glove100k
case $updates in
	glove100k | synth768) ;;
	*) say "--updates: glove100k or synth768"; exit 2 ;;
esac
[ -z "$pgvector" ] || pgvector=$(cd "$pgvector" && pwd)
if [ -n "$out" ]; then
	exec > >(tee "$out")
	copier=$!
fi

dir=
cleanup() {
	local status=$?
	trap - EXIT
	trap '' PIPE # whoever reads us may be gone; clean up all the same
	set +e
	if [ -n "$dir" ]; then
		if [ $status != 0 ] && [ -f "$dir/server.log" ]; then
			as_root tail -n 20 "$dir/server.log" >&2
		fi
		stop_server "$dir"
		as_root rm -rf "$dir"
	fi
	if [ -n "$out" ]; then
		exec >&-
		wait "$copier" || true
	fi
	[ $status = 0 ] || say "measure.sh FAILED (status $status)"
	exit $status
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# --- the report --------------------------------------------------------------

title() { printf '\n## %s\n\n' "$1"; say "$(date +%T) $1"; }
text() { printf '%s\n' "$@"; }

# Runs a benchmark program and shows its command, without the places of this
# machine.
shown() {
	local name=$1
	shift
	printf '\n`%s %s`\n\n' "$name" \
		"$(sed "s|$dir|SCRATCH|g; s|$data|DATA|g" <<<"$*")"
	"$bin/$name" "$@"
}

# A Markdown row.
row() { local cell; for cell in "$@"; do printf '| %s ' "$cell"; done; echo "|"; }
rule() { local i; for ((i = 0; i < $1; i++)); do printf '|---'; done; echo "|"; }

# cell FILE LIST COLUMN: one figure of a table that a program printed.
cell() {
	awk -F' *[|] *' -v list="$2" -v name="$3" '
		$2 == "list" { for (i = 2; i < NF; i++) if ($i == name) c = i }
		$2 == list { print $c; exit }' "$1"
}

# value FILE KEY [COLUMN]: of the table that has such a column, or of any table
# the second one.
value() {
	awk -F' *[|] *' -v key="$2" -v name="${3:-}" '
		BEGIN { if (name == "") c = 3 }
		c && $2 == key { print $c; exit }
		/^[|]/ { for (i = 2; i < NF; i++) if (name != "" && $i == name) c = i }' "$1"
}

# calculate EXPRESSION [FORMAT]
calculate() { awk "BEGIN { printf \"${2:-%.2f}\", ${1//$'\n'/ } }"; }

# target NAME FOUND WANTED CONDITION: the condition as awk has it.
targets=()
target() {
	local met=missed
	awk "BEGIN { exit !($4) }" && met=met
	targets+=("$(row "$1" "$2" "$3" "$met")")
}

median() { printf '%s\n' "$@" | sort -n | awk '{ v[NR] = $1 }
	END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }

# --- machine -----------------------------------------------------------------

package() { dpkg-query -W -f='${Version}' "$1" 2>/dev/null || echo "not there"; }

disk() { # of the scratch directory
	local fs source
	read -r fs source < <(findmnt -no FSTYPE,SOURCE -T "$dir")
	printf '%s on %s' "$fs" "$(basename "$source")"
	case $(basename "$source") in
		vd*) printf ' (virtio, a virtual disk)' ;;
		*) [ "$(lsblk -dno ROTA "$source" 2>/dev/null | tr -d ' ')" = 1 ] &&
			printf ', rotating' ;;
	esac
}

describe_machine() {
	local commit
	commit=$(git -C "$top" rev-parse --short HEAD 2>/dev/null || echo unknown)
	[ -z "$(git -C "$top" status --porcelain 2>/dev/null)" ] ||
		commit+=", with changes"
	echo "# navis on glove100k, $(date -u +%F)"
	title "Machine and versions"
	row "" ""
	rule 2
	row processor "$(lscpu | sed -n 's/^Model name: *//p'), $(nproc) cores"
	row memory "$(awk '/MemTotal/ { printf "%.1f GiB", $2 / 1048576 }' /proc/meminfo)"
	row kernel "$(uname -sr)"
	row disk "$(disk)"
	row load "$(cut -d' ' -f1-3 /proc/loadavg) at the start"
	row PostgreSQL "$(package "postgresql-$("$PG_CONFIG" --version |
		sed 's/[^0-9]*\([0-9]*\).*/\1/')")"
	row navis "$(sed -n "s/^default_version = '\(.*\)'/\1/p" \
		"$top/navis.control"), commit $commit"
	row compiler "$(cc --version | head -n 1)"
	row liburing "$(package liburing2)"
	row OpenBLAS "$(package libopenblas0-pthread)"
	if [ -n "$pgvector" ]; then
		row pgvector "$(sed -n "s/^default_version = '\(.*\)'/\1/p" \
			"$pgvector/vector.control"), its own make"
	fi
	text "" "Data: glove100k, 100,000 GloVe word vectors of 100 dimensions, not" \
		"normalised; 1,000 other words as queries; k = 10. Server settings:" \
		""
	printf -- '- `%s`\n' "${settings[@]}" "everything else: the defaults"
	text "" "Command: \`bash bench/measure.sh --data DATA$(
		[ -z "$pgvector" ] || echo " --pgvector CHECKOUT"
	) --lists $lists --passes $passes --pairs $pairs --updates $updates${quick:+ --quick}$parts\`"
}

# --- engine and server -------------------------------------------------------

settings=("shared_buffers = 1GB" "max_wal_size = 8GB" "navis.build_threads = 2")

# engine_index METRIC: built once, its directory left in SCRATCH.
engine_index() {
	local metric=$1 place=${2:-} name=$1${2:+-random}
	[ ! -d "$dir/engine-$name" ] || return 0
	shown engine_bench build "$dir/engine-$name" --base "${glove}_base.fbin" \
		--metric "$metric" ${place:+--random-placement}
}

# engine_search METRIC NAME OPTIONS...: prints the table, keeps it in NAME.
engine_search() {
	local metric=$1 name=$2 index=$1
	shift 2
	if [ "${1:-}" = random ]; then index+=-random; shift; fi
	shown engine_bench search "$dir/engine-$index" \
		--base "${glove}_base.fbin" --query "${glove}_query.fbin" \
		--truth "${glove}_gt_$metric.ibin" --metric "$metric" "$@" |
		tee "$dir/$name"
}

ask() { psql -XAtq -v ON_ERROR_STOP=1 "$@"; }
operator() { if [ "$1" = l2 ]; then echo "<->"; else echo "<=>"; fi; }

server_up() {
	[ -z "${PGHOST:-}" ] || return 0
	say "$(date +%T) building and starting a server"
	build_in "$dir" >&2
	start_server "$dir" "${settings[@]}"
	ask -c "CREATE EXTENSION navis"
}

# load_rows TABLE [OPTIONS]
load_rows() {
	local table=$1
	shift
	[ "$(ask -c "SELECT to_regclass('$table') IS NULL")" = f ] ||
		"$bin/sql_bench" load "$table" --base "${glove}_base.fbin" "$@"
}

sql_index() {
	local metric=$1 sql
	server_up
	load_rows glove
	[ "$(ask -c "SELECT to_regclass('glove_$metric') IS NULL")" = t ] || return 0
	sql="CREATE INDEX glove_$metric ON glove USING navis (v real_${metric}_ops)"
	text "" "\`$sql\`: $(create_seconds "$sql") s."
	reading "glove_$metric"
}

# reading INDEX: how the engine reads and computes.
reading() {
	text "" "Engine: $(ask -F ', ' -c "SELECT io_method, simd || ' kernels',
		search_threads || ' search threads'
		FROM navis_index_info('$1')")."
}

# sql_search METRIC NAME OPTIONS...
sql_search() {
	local metric=$1 name=$2
	shift 2
	shown sql_bench search glove --query "${glove}_query.fbin" \
		--truth "${glove}_gt_$metric.ibin" --operator "$(operator "$metric")" \
		--index "glove_$metric" "$@" | tee "$dir/$name"
}

# create_seconds SQL [SET...]: by the server's clock.
create_seconds() {
	local sql=$1 setting
	shift
	{
		for setting in "$@"; do echo "SET $setting;"; done
		cat <<-SQL
			CHECKPOINT;
			SELECT clock_timestamp() AS begun \gset
			$sql;
			SELECT round(extract(epoch FROM clock_timestamp() - :'begun'), 2);
		SQL
	} | ask
}

# The worker is connected to no database, so pg_stat_activity lacks it.
worker_pid() {
	local postmaster status pid
	postmaster=$(as_root head -n 1 "$dir/data/postmaster.pid")
	for status in $(grep -ls "^PPid:[[:space:]]*$postmaster\$" \
		/proc/[0-9]*/status); do
		pid=$(basename "$(dirname "$status")")
		if tr '\0' ' ' <"/proc/$pid/cmdline" | grep -q 'navis worker'; then
			echo "$pid"
			return
		fi
	done
	say "the worker's process is not found"
	return 1
}

# --- parts -------------------------------------------------------------------

# The first recall of at least 0.99 from list size 100 on, and the deepest fall
# on the way there.
recall_way() {
	awk -F' *[|] *' '
		$2 ~ /^[0-9]+$/ && $2 >= 100 && !reached {
			if ($3 > best) best = $3
			if (best - $3 > fall) fall = best - $3
			if ($3 >= 0.99) { reached = $2; value = $3 }
		}
		END { printf "%d %.4f %.4f\n", reached, reached ? value : best, fall }' \
		"$1"
}

part_curve() {
	local metric at recall value fall pid
	title "Curve: the engine alone"
	text "W = 4, CASR percentile 99, cache 256 MB, figures after the warm-up of" \
		"each bucket with base rows as queries. QPS and latency as the client" \
		"sees them; the clients share the cores with the engine. Bytes are read" \
		"from disk by one query, vectors are compared exactly, w is the rerank" \
		"window; /proc bytes is read_bytes of the process."
	for metric in l2 cosine; do
		printf '\n### Engine, %s\n' $metric
		engine_index $metric
		engine_search $metric engine_$metric --sweep "$lists" --clients 1,2 \
			--passes "$passes"
	done
	title "Curve: through SQL"
	text "\`SELECT id FROM glove ORDER BY v <-> \$1 LIMIT 10\`, prepared. After" \
		"every query of the pass that recall and work are taken from," \
		"navis_last_scan() must say that the graph answered: mode graph, hops" \
		"and edge pages above zero. /proc bytes is read_bytes of the worker."
	for metric in l2 cosine; do
		printf '\n### SQL, %s\n' $metric
		sql_index $metric
		pid=$(worker_pid)
		sql_search $metric sql_$metric --sweep "$lists" --clients 1,2 \
			--passes "$passes" --engine-pid "$pid"
		recall=$(cell "$dir/sql_$metric" 100 recall)
		[ -z "$recall" ] ||
			target "recall@10 at search_list_size 100, $metric" "$recall" \
				">= 0.97" "$recall >= 0.97"
		read -r at value fall < <(recall_way "$dir/sql_$metric")
		target "recall@10 >= 0.99 at list size <= 400, $metric" \
			"$value at $at" "400 or less" "$at > 0 && $at <= 400"
		target "deepest fall of recall on the way there, $metric" "$fall" \
			"<= 0.002" "$fall <= 0.002"
	done
	calibration
}

calibration() {
	local metric
	printf '\n### Calibrated buckets\n\n'
	text "A search uses the window of the first bucket whose bounds are not below" \
		"its LIMIT and list size; above list size 800 or LIMIT 500 every explored" \
		"vector is loaded." ""
	row metric "LIMIT up to" "list size up to" observed w90 w99 w100
	rule 7
	for metric in l2 cosine; do
		ask -F ' | ' -c "SELECT '| $metric', limit_bound, list_size_bound,
			observed, window_p90, window_p99, window_p100 || ' |'
			FROM navis_index_calibration('glove_$metric') WHERE ready
			ORDER BY 2, 3"
	done
}

part_casr() {
	local metric name option loss share all
	title "CASR: vectors loaded, list size 100"
	for metric in l2 cosine; do
		printf '\n### CASR, %s\n' $metric
		engine_index $metric
		for option in --load-all "--percentile 90" "--percentile 99" \
			"--percentile 100"; do
			name=casr_${metric}_${option//[^0-9a-z]/}
			engine_search $metric "$name" --sweep 100 --passes 1 $option \
				>/dev/null
		done
		text ""
		row window w recall@10 explored "vectors loaded" "loaded of explored" \
			"recall against loading all"
		rule 7
		all=$(cell "$dir/casr_${metric}_loadall" 100 recall)
		for name in loadall percentile90 percentile99 percentile100; do
			local file=$dir/casr_${metric}_$name r v e
			r=$(cell "$file" 100 recall)
			e=$(cell "$file" 100 explored)
			v=$(cell "$file" 100 vectors)
			share=$(calculate "$v / $e" %.3f)
			loss=$(calculate "$all - $r" %.4f)
			row "${name/percentile/percentile }" "$(cell "$file" 100 w)" "$r" \
				"$e" "$v" "$share" "$(calculate "-($loss)" %+.4f)"
			[ $name = percentile99 ] || continue
			target "vectors loaded of explored at list size 100, $metric" \
				"$v of $e: $share" "< 0.5" "$share < 0.5"
			target "recall lost against loading all, $metric" "$loss" \
				"<= 0.005" "$loss <= 0.005"
		done
	done
}

part_pages() {
	local metric list
	title "Edge pages: placement and entrance graph"
	text "Edge pages a query looks at, cached or not; engine alone." \
		"Random placement: the same build, lists put into pages in random order." \
		"Medoid: the same index, searches start at one fixed vertex."
	for metric in l2 cosine; do
		engine_index $metric
		engine_index $metric random
		engine_search $metric pages_$metric --sweep 40,100 >/dev/null
		engine_search $metric pages_${metric}_medoid --sweep 40,100 \
			--from-medoid >/dev/null
		engine_search $metric pages_${metric}_random random --sweep 40,100 \
			>/dev/null
	done
	text ""
	row metric list "random placement" placed "random / placed" \
		"placed, from the medoid" "medoid / entrance" "hops" "hops, medoid" \
		"recall" "recall, medoid"
	rule 11
	for metric in l2 cosine; do
		for list in 40 100; do
			local f=$dir/pages_$metric p r m
			p=$(cell "$f" $list "edge pages")
			r=$(cell "${f}_random" $list "edge pages")
			m=$(cell "${f}_medoid" $list "edge pages")
			row $metric $list "$r" "$p" "$(calculate "$r / $p")" "$m" \
				"$(calculate "$m / $p")" "$(cell "$f" $list hops)" \
				"$(cell "${f}_medoid" $list hops)" \
				"$(cell "$f" $list recall)" "$(cell "${f}_medoid" $list recall)"
			target "edge pages, random / placed, $metric, list $list" \
				"$(calculate "$r / $p")" "> 1, measurably" "$r / $p > 1.05"
			target "edge pages, medoid / entrance, $metric, list $list" \
				"$(calculate "$m / $p" %.3f)" "> 1, measurably" "$m / $p > 1.01"
		done
	done
}

# KB of a field of the worker's /proc status.
worker_memory() {
	as_root sed -n "s/^$1:[^0-9]*\([0-9]*\) kB/\1/p" \
		"/proc/$(worker_pid)/status"
}

# search_itself TABLE FIRST: 150 of its rows as queries; prints how the last
# scan was answered.
search_itself() {
	ask <<-SQL
		SET enable_seqscan = off;
		SELECT count(*) FROM (SELECT v FROM $1 OFFSET $2 LIMIT 150) q,
			LATERAL (SELECT id FROM $1 ORDER BY v <-> q.v LIMIT 10) n \g /dev/null
		SELECT mode FROM navis_last_scan() WHERE hops > 0 AND edge_pages > 0;
	SQL
}

# Sixteen sessions at a time, so that every search thread has had as many
# searches in hand as it ever takes.
search_widely() {
	local i jobs=()
	for ((i = 0; i < 16; i++)); do
		search_itself "$1" $((i * 150)) >/dev/null &
		jobs+=($!)
	done
	wait "${jobs[@]}"
}

# resident TABLE: builds an index, restarts the server, so that this index is
# all that the engine has, searches, and leaves figures in variables of the
# caller.
resident() {
	local tries=0
	ask -c "CREATE INDEX IF NOT EXISTS $1_l2 ON $1 USING navis (v)" 2>/dev/null
	restart_server "$dir"
	until [ "$(search_itself "$1" 0)" = graph ]; do
		tries=$((tries + 1))
		[ $tries -lt 50 ] || { say "$1: the graph does not answer"; exit 1; }
		sleep 0.2
	done
	search_widely "$1"
	search_widely "$1"
	rss=$(worker_memory VmRSS)
	anon=$(worker_memory RssAnon)
	IFS='|' read -r rows dimensions per_vector vector_mb edge_mb cached < <(
		ask -c "SELECT vertices, dimensions, round(memory_per_vector::numeric, 1),
			round(vector_bytes / 1e6, 1), round(edge_bytes / 1e6, 1), cache_bytes
			FROM navis_index_info('$1_l2')"
	)
	[ "$cached" = 0 ] || { say "the cache holds $cached bytes"; exit 1; }
	held=$(calculate "$rows * $per_vector / 1024" %.0f)
	ask -c "DROP INDEX $1_l2"
}

part_nocache() {
	local metric list bytes proc deviation pid
	title "Without a cache: bytes read"
	text "navis.cache_size = 0. Bytes a query by navis_last_scan(), and read_bytes" \
		"of the worker in /proc during the same thousand queries."
	sql_index l2
	sql_index cosine
	ask -c "ALTER SYSTEM SET navis.cache_size = 0"
	restart_server "$dir"
	for metric in l2 cosine; do
		printf '\n### navis.cache_size = 0, %s\n' $metric
		"$bin/sql_bench" search glove --query "${glove}_query.fbin" \
			--truth "${glove}_gt_$metric.ibin" --index "glove_$metric" \
			--operator "$(operator $metric)" >/dev/null # opens the index
		pid=$(worker_pid)
		sql_search $metric nocache_$metric --sweep 20,40,100,200,400 \
			--clients 1,2 --passes 1 --engine-pid "$pid"
		for list in 20 100 400; do
			bytes=$(cell "$dir/nocache_$metric" $list bytes)
			proc=$(cell "$dir/nocache_$metric" $list "/proc bytes")
			deviation=$(calculate "100 * ($bytes / $proc - 1)" %+.2f)
			target "bytes a query by statistics and /proc, $metric, list $list" \
				"$bytes and $proc: $deviation %" "within 5 %" \
				"$deviation < 5 && $deviation > -5"
		done
	done
	resident_memory
	ask -c "ALTER SYSTEM RESET navis.cache_size"
	restart_server "$dir"
}

resident_memory() {
	local table rss anon rows dimensions per_vector vector_mb edge_mb cached
	local held fixed first_anon first_rows slope
	title "Without a cache: resident memory of the worker"
	text "For each line one index is built, the server restarted, so that the" \
		"engine has nothing else, and the index searched by sixteen sessions at" \
		"a time. Held: the printed memory a vector times rows. Fixed part: what" \
		"is resident with an index of 10,000 rows of the same dimensions, less" \
		"what that index holds: the process, its threads and rings, and the" \
		"buffers of running searches. 400 dimensions: the same vectors four" \
		"times in a row. The slope is what a further row adds to RssAnon." ""
	ask -c "DROP INDEX glove_l2, glove_cosine"
	load_rows tenth --rows 10000
	load_rows half --rows 50000
	ask <<-SQL
		CREATE TABLE tenth_wide AS
			SELECT id, v || v || v || v AS v FROM tenth ORDER BY id;
		CREATE TABLE half_wide AS
			SELECT id, v || v || v || v AS v FROM half ORDER BY id;
		ANALYZE tenth_wide, half_wide;
	SQL
	row rows dimensions "vector file MB" "edge file MB" "printed B a vector" \
		"held KB" "VmRSS KB" "RssAnon KB" "fixed + held KB" \
		"RssAnon of it" "slope, B a row"
	rule 11
	for table in tenth half glove tenth_wide half_wide; do
		resident $table
		case $table in
			tenth*) fixed=$((anon - held)) first_anon=$anon first_rows=$rows slope= ;;
			*) slope=$(calculate "($anon - $first_anon) * 1024 /
				($rows - $first_rows)" %.1f) ;;
		esac
		row "$rows" "$dimensions" "$vector_mb" "$edge_mb" "$per_vector" \
			"$held" "$rss" "$anon" "$((fixed + held))" \
			"$(calculate "$anon / ($fixed + $held)" %.3f)" "$slope"
		[ -n "$slope" ] || continue
		target "resident memory, $rows rows, $dimensions dimensions" \
			"RssAnon $anon KB" "<= fixed $fixed + held $held KB, + 5 %" \
			"$anon <= 1.05 * ($fixed + $held)"
		target "resident bytes a further row adds, $rows rows, $dimensions dimensions" \
			"$slope B of a vector of $((dimensions * 4)) B" \
			"<= printed $per_vector B, + 10 %" "$slope <= 1.1 * $per_vector"
	done
}

pgvector_up() {
	[ ! -d "$dir/pgvector" ] || return 0
	mkdir -p "$dir/pgvector"
	(cd "$pgvector" && tar cf - --exclude=./.git .) | tar xf - -C "$dir/pgvector"
	make -C "$dir/pgvector" -s -j"$(nproc)" PG_CONFIG="$PG_CONFIG" >&2
	as_root make -C "$dir/pgvector" -s install PG_CONFIG="$PG_CONFIG" >/dev/null
	ask -c "CREATE EXTENSION vector"
}

# build_pair NAME NAVIS_OPTIONS HNSW_OPTIONS LIMIT: one after the other, again
# and again; then recall of the last of each.
build_pair() {
	local name=$1 navis=$2 hnsw=$3 limit=$4 i n h ratio
	local navis_seconds=() hnsw_seconds=()
	for ((i = 1; i <= pairs; i++)); do
		ask -c "DROP INDEX IF EXISTS ours, theirs"
		navis_seconds+=("$(create_seconds \
			"CREATE INDEX ours ON build_real USING navis (v) $navis" \
			"navis.build_threads = 2")")
		hnsw_seconds+=("$(create_seconds \
			"CREATE INDEX theirs ON build_vector USING hnsw (v vector_l2_ops) $hnsw" \
			"maintenance_work_mem = '4GB'" \
			"max_parallel_maintenance_workers = 1" \
			"client_min_messages = debug1" 2>>"$dir/hnsw.log")")
		say "$(date +%T) $name: navis ${navis_seconds[-1]} s, hnsw ${hnsw_seconds[-1]} s"
	done
	n=$(median "${navis_seconds[@]}")
	h=$(median "${hnsw_seconds[@]}")
	ratio=$(calculate "$n / $h" %.3f)
	printf '\n### %s\n\n' "$name"
	row "" seconds median "size MB"
	rule 4
	row "navis ${navis:-WITH defaults}" "${navis_seconds[*]}" "$n" "$(ask -c "
		SELECT round((edge_bytes + vector_bytes + state_bytes +
			pg_relation_size('ours')) / 1e6) FROM navis_index_info('ours')")"
	row "pgvector hnsw $hnsw" "${hnsw_seconds[*]}" "$h" \
		"$(ask -c "SELECT round(pg_relation_size('theirs') / 1e6)")"
	text "" "navis / pgvector: **$ratio**"
	reading ours
	target "build time, navis / pgvector, $name" "$n s / $h s = $ratio" \
		"<= $limit" "$ratio <= $limit"
	build_recall
}

build_recall() {
	local common=(--query "${glove}_query.fbin" --truth "${glove}_gt_l2.ibin"
		--clients 1,2 --passes 1)
	shown sql_bench search build_real --index ours "${common[@]}" \
		--sweep 40,100,200,400
	shown sql_bench search build_vector --type vector --index theirs \
		"${common[@]}" --setting hnsw.ef_search --sweep 40,100,200,400
}

part_build() {
	title "Build beside pgvector's HNSW"
	if [ -z "$pgvector" ]; then
		text "Left out: this part needs the sources of pgvector, --pgvector DIR."
		return 0
	fi
	server_up
	pgvector_up
	load_rows build_real
	load_rows build_vector --type vector
	text "L2; the two take turns, seconds by the server's clock around CREATE" \
		"INDEX. navis: navis.build_threads = 2. pgvector: maintenance_work_mem =" \
		"4GB (the build stays in memory), max_parallel_maintenance_workers = 1," \
		"so leader and one worker. Tables: real[] and vector(100)."
	build_pair "same degree" "" "WITH (m = 48, ef_construction = 200)" 0.5
	build_pair "small graphs" "WITH (max_degree = 32, build_list_size = 64)" \
		"WITH (m = 16, ef_construction = 64)" 1.0
	text "" "pgvector's own messages, number of builds first:" ""
	sed -n 's/.*DEBUG: *\(using [0-9]* parallel workers\).*/\1/p
		s/.*DEBUG: *\(leader processed\|worker processed\) \([0-9]*\)[0-9]\{3\} .*/\1 \2 thousand rows/p' \
		"$dir/hnsw.log" | sort | uniq -c | sed 's/^/- /'
	ask -c "DROP TABLE build_real, build_vector"
}

part_memory() {
	local metric
	title "Memory that an index holds"
	sql_index l2
	sql_index cosine
	for metric in l2 cosine; do search_once $metric; done
	text "Bytes a vector, after a search, default settings: code, indirection" \
		"(vertex to slots), element and hash tables, the share of the entrance" \
		"graph, the rest; and the cache, which all indexes of the server share." ""
	row index rows code map elements entrance other "**sum**" "cache MB" \
		"of at most MB" "cache B a vector" "vector itself"
	rule 12
	ask -F ' | ' <<-SQL
		SELECT '| ' || c.relname, vertices,
			round(memory_codes::numeric / vertices, 1) || ' (pq_bytes ' ||
				pq_bytes || ')',
			round(memory_map::numeric / vertices, 1),
			round(memory_elements::numeric / vertices, 1),
			round(memory_entrance::numeric / vertices, 1),
			round(memory_other::numeric / vertices, 1),
			'**' || round(memory_per_vector::numeric, 1) || '**',
			round(cache_bytes / 1e6, 1), round(cache_limit / 1e6, 1),
			round(cache_bytes::numeric / vertices, 1),
			dimensions * 4 || ' |'
		FROM pg_class c, navis_index_info(c.oid)
		WHERE c.relname IN ('glove_l2', 'glove_cosine') ORDER BY 1 DESC
	SQL
}

search_once() {
	ask >/dev/null <<-SQL
		SELECT id FROM glove ORDER BY v $(operator "$1")
			(SELECT v FROM glove LIMIT 1) LIMIT 10
	SQL
}

# --- updates -----------------------------------------------------------------

# The data set of the three parts below: update_base, update_queries, rows,
# metrics.
update_data() {
	local made=$dir/synthetic
	[ -z "${update_base:-}" ] || return 0
	metrics="l2 cosine"
	rows=100000
	[ -z "$quick" ] || { metrics=l2; rows=30000; }
	update_base=$data/${updates}_base.fbin
	update_queries=$data/${updates}_query.fbin
	[ $updates = synth768 ] || return 0
	metrics=l2
	[ ! -r "$update_base" ] || [ ! -r "$update_queries" ] || return 0
	[ -r "$data/make_synthetic.py" ] ||
		{ say "neither $update_base nor $data/make_synthetic.py is there"; exit 2; }
	install_packages python3-numpy
	/usr/bin/python3 "$data/make_synthetic.py" "$made" --base "$rows" \
		--insert 10 --no-gt >&2
	update_base=$made/synth768_base.fbin
	update_queries=$made/synth768_query.fbin
}

describe_updates() {
	text "Data: $updates, the first $rows rows, 1,000 queries, k = 10. Exact" \
		"neighbours are computed by the program, for the rows of the moment." \
		"Difference: recall@10 of the changed index less that of an index built" \
		"over the same rows, at the same list size."
}

# engine_change MODE METRIC OPTIONS...: runs it, keeps the output.
engine_change() {
	local mode=$1 metric=$2
	shift 2
	rm -rf "$dir/engine-$mode"
	shown engine_bench $mode "$dir/engine-$mode" --base "$update_base" \
		--query "$update_queries" --metric "$metric" --sweep 20,40,100,200 \
		"$@" | tee "$dir/${mode}_$metric"
	rm -rf "$dir/engine-$mode"
}

# worst FILE: the smallest difference of recall and its list size.
worst() {
	awk -F' *[|] *' '
		$5 == "difference" { there = 1; next }
		there && $2 !~ /^[0-9]+$/ && $2 !~ /^-/ { exit }
		there && $2 ~ /^[0-9]+$/ && (n++ == 0 || $5 < least) {
			least = $5; list = $2
		}
		END { printf "%+.4f %d\n", least, list }' "$1"
}

# target_recall FILE WHAT LIMIT
target_recall() {
	local difference list
	read -r difference list < <(worst "$1")
	target "recall@10 against a fresh build, $2" \
		"$difference at list size $list, the worst of 20, 40, 100, 200" \
		">= -$3" "$difference >= -$3"
}

part_insert() {
	local metric file share
	update_data
	title "Insertion: the engine alone"
	describe_updates
	text "Built over one half of the rows, the other half inserted one by one by" \
		"one client; 2 insert threads, cache 256 MB. Files after a checkpoint."
	for metric in $metrics; do
		printf '\n### Insertion, %s\n' "$metric"
		engine_change insert "$metric" --rows $rows --first $((rows / 2))
		file=$dir/insert_$metric
		target_recall "$file" "half of the rows inserted one by one, $metric" 0.005
		share=$(value "$file" "loaded of explored")
		target "position seeking: vectors loaded of explored, $metric" \
			"$(value "$file" "vectors loaded") of $(value "$file" explored): $share" \
			"< 0.5" "$share < 0.5"
	done
}

part_replace() {
	local metric file window ratio
	update_data
	window=$((rows / 3 / 10 * 10))
	title "Replacement: the engine alone"
	describe_updates
	text "A window of $window rows; in each of ten rounds the oldest fifth is" \
		"deleted, the index consolidated, and as many new rows are inserted. No" \
		"row comes twice."
	for metric in $metrics; do
		printf '\n### Replacement, %s\n' "$metric"
		engine_change replace "$metric" --window $window --rounds 10
		file=$dir/replace_$metric
		target_recall "$file" "after ten rounds of replacing a fifth, $metric" 0.01
		ratio=$(value "$file" "all files" ratio)
		target "files after ten rounds, changed / fresh, $metric" \
			"$(value "$file" "all files" changed) MB / $(value "$file" "all files" \
				fresh) MB = $ratio" "<= 1.3" "$ratio <= 1.3"
	done
}

# The tables of the part `writes`: name, type of the vectors, index.
write_table() {
	local table=$1 type=$2 index=$3
	"$bin/sql_bench" load "$table" --base "$update_base" --rows "$first" \
		--type "$type"
	[ -z "$index" ] ||
		text "- \`$(tr -s '\n\t' ' ' <<<"$index")\`: $(create_seconds "$index" \
			"maintenance_work_mem = '4GB'") s"
}

# write_rows METHOD FIRST ROWS: into every table, one after the other.
write_rows() {
	local table type index
	for table in $write_tables; do
		type=vector index=
		case $table in
			w_navis | w_lean) type=real index=${table}_i ;;
			w_none) type=real ;;
		esac
		"$bin/sql_bench" insert $table --base "$update_base" --first "$2" \
			--rows "$3" --method "$1" --type $type ${index:+--index $index} \
			$([ -z "$index" ] || echo "--engine-pid $(worker_pid)") \
			>"$dir/$1_$table"
		say "$(date +%T) $1 $table: $(tail -n 1 "$dir/$1_$table")"
	done
}

written() { value "$dir/$1_$2" "$1" "$3"; }

# The tables that are written to, and what is on them.  As for builds there are
# two pairs: navis by its defaults beside pgvector with m = 48, and navis with
# lists of a third beside pgvector by its defaults.
write_tables="w_navis w_large w_lean w_small w_none"
declare -A written_index=(
	[w_navis]="navis"
	[w_large]="pgvector, m = 48, ef_construction = 200"
	[w_lean]="navis, max_degree = 32, build_list_size = 64"
	[w_small]="pgvector, m = 16, ef_construction = 64"
	[w_none]="no index")

report_rows() {
	local method table
	text ""
	row "" index rows "s to the end" "rows/s" "s until linked" "rows/s linked" \
		"CPU ms a row"
	rule 8
	for method in rows multi copy; do
		for table in $write_tables; do
			row $method "${written_index[$table]}" "$(written $method $table rows)" \
				"$(written $method $table "s to the end")" \
				"$(written $method $table "rows/s")" \
				"$(written $method $table "s until linked")" \
				"$(written $method $table "rows/s linked")" \
				"$(written $method $table "CPU ms a row")"
		done
	done
}

# target_rows METHOD WHAT TIMES
target_rows() {
	local pair table peer ours theirs ratio
	for pair in "w_navis w_large" "w_lean w_small" "w_navis w_small"; do
		read -r table peer <<<"$pair"
		ours=$(written $1 $table "rows/s linked")
		theirs=$(written $1 $peer "rows/s linked")
		ratio=$(calculate "$ours / $theirs")
		target "$2: ${written_index[$table]} / ${written_index[$peer]}" \
			"$ours rows/s / $theirs rows/s = $ratio" ">= $3" "$ratio >= $3"
	done
}

write_throughput() {
	local method at=$first
	title "Writes: rows into an indexed table"
	text "$first rows of $updates loaded and indexed, then one session inserts" \
		"$slice rows by each method: prepared INSERTs of one row in one" \
		"transaction (rows), of a hundred rows (multi), one COPY; every table" \
		"in turn, different rows for each method. Linked: until no row waits to" \
		"be linked into the graph (pgvector has no such rows). CPU: of the" \
		"session and of the engine. 2 insert threads, every GUC at its default." ""
	write_table w_navis real "CREATE INDEX w_navis_i ON w_navis USING navis (v)"
	write_table w_lean real "CREATE INDEX w_lean_i ON w_lean USING navis (v)
		WITH (max_degree = 32, build_list_size = 64)"
	write_table w_small vector "CREATE INDEX w_small_i ON w_small USING hnsw
		(v vector_l2_ops) WITH (m = 16, ef_construction = 64)"
	write_table w_large vector "CREATE INDEX w_large_i ON w_large USING hnsw
		(v vector_l2_ops) WITH (m = 48, ef_construction = 200)"
	write_table w_none real ""
	for method in rows multi copy; do
		write_rows $method $at $slice
		at=$((at + slice))
	done
	next=$at
	report_rows
	reading w_navis_i
	target_rows rows "inserts, one session, autocommit off" 3
	target_rows copy "COPY, 2 insert threads" 5
}

# pairs TABLE TYPE SYNC [INDEX]: prints the table's last line, keeps it.
write_pairs() {
	local table=$1 type=$2 sync=$3 index=${4:-}
	"$bin/sql_bench" pairs "$table" --plain ${table}_plain --base "$update_base" \
		--first $next --rows 1000 --type "$type" ${index:+--index $index} \
		--set synchronous_commit="$sync" --pause-us 2000 >"$dir/pairs"
	row "$table" "$sync" "$(value "$dir/pairs" 1000 "p50 ms, index")" \
		"$(value "$dir/pairs" 1000 "p50 ms, none")" \
		"$(value "$dir/pairs" 1000 ratio)" \
		"$(value "$dir/pairs" 1000 "p99 ms, index")" \
		"$(value "$dir/pairs" 1000 "p99 ms, none")"
}

write_single() {
	local sync ratio
	title "Writes: a single INSERT"
	text "A row by autocommit into a table with index and one without, in turns," \
		"1,000 times, 2 ms between pairs, so that the queue of the index has" \
		"room. With synchronous_commit = off the statement without what the disk" \
		"takes for COMMIT." ""
	ask -c "CREATE TABLE w_navis_plain (LIKE w_navis)" \
		-c "CREATE TABLE w_small_plain (LIKE w_small)"
	row table synchronous_commit "p50 ms, index" "p50 ms, none" ratio \
		"p99 ms, index" "p99 ms, none"
	rule 7
	for sync in on off; do
		write_pairs w_navis real $sync w_navis_i
		ratio=$(value "$dir/pairs" 1000 ratio)
		target "single INSERT, with / without index, synchronous_commit = $sync" \
			"$(value "$dir/pairs" 1000 "p50 ms, index") ms / $(value "$dir/pairs" \
				1000 "p50 ms, none") ms = $ratio" "< 1.5" "$ratio < 1.5"
		next=$((next + 1000))
		write_pairs w_small vector $sync
	done
}

# beside NAME TABLE OPTIONS...
beside() {
	local name=$1 table=$2
	shift 2
	printf '\n### %s\n' "$name"
	shown sql_bench mixed $table --base "$update_base" --first $next \
		--query "$update_queries" --rounds 3 --passes 1 "$@" | tee "$dir/beside"
	ratio=$(value "$dir/beside" median "ratio of p50")
}

write_beside() {
	local ratio threads
	title "Writes: searches beside inserts"
	text "One session asks, list size 100 (pgvector: ef_search 100), alone and" \
		"while another one inserts rows, prepared, 100 in a transaction, as fast" \
		"as it can or at a given rate, three times in turns. With one insert" \
		"thread the index works on one other core."
	for threads in 1 2; do
		ask -c "ALTER SYSTEM SET navis.insert_threads = $threads"
		restart_server "$dir"
		beside "navis, $threads insert threads" w_navis --index w_navis_i
		target "search p50, beside inserts / alone, insert_threads = $threads" \
			"$ratio" "<= 1.5" "$ratio <= 1.5"
	done
	ask -c "ALTER SYSTEM RESET navis.insert_threads"
	restart_server "$dir"
	beside "navis, 100 rows a second" w_navis --index w_navis_i --rate 100
	beside "pgvector, m = 16, ef_construction = 64" w_small --type vector \
		--index w_small_i --setting hnsw.ef_search
}

# index_work NAME: buffers of the index accessed so far | vertices.
index_work() {
	sleep 1 # statistics of a session arrive when it has ended
	ask -F ' ' -c "SELECT idx_blks_read + idx_blks_hit, vertices
		FROM pg_statio_user_indexes, navis_index_info('$1')
		WHERE indexrelname = '$1'"
}

# update_other WHAT: 1,000 rows.
update_other() {
	local accesses vertices after now rate
	read -r accesses vertices < <(index_work w_update_i)
	ask -c "UPDATE w_update SET other = other + 1 WHERE id < 1000"
	read -r after now < <(index_work w_update_i)
	rate=$(calculate "($after - $accesses) / 1000")
	row "$1" 1000 "$rate" "$((now - vertices))"
	target "buffer accesses of the index a row, UPDATE of another column, $1" \
		"$rate" "< 20" "$rate < 20"
	target "new vertices, UPDATE of another column, $1" "$((now - vertices))" 0 \
		"$now == $vertices"
}

write_update() {
	title "Writes: UPDATE of another column"
	text "Shared-buffer accesses by pg_statio_user_indexes. An update that" \
		"PostgreSQL does without touching indexes (HOT) needs none; an index on" \
		"the changed column rules that out." ""
	ask <<-SQL
		CREATE TABLE w_update AS
			SELECT id, v, 0 AS other FROM w_navis WHERE id < 5000;
		CREATE INDEX w_update_i ON w_update USING navis (v);
	SQL
	row "" rows "accesses a row" "new vertices"
	rule 4
	update_other "no index on it"
	ask -c "CREATE INDEX ON w_update (other)"
	update_other "an index on it"
	ask -c "DROP TABLE w_update"
}

part_writes() {
	local first next slice
	if [ -z "$pgvector" ]; then
		title Writes
		text "Left out: this part needs the sources of pgvector, --pgvector DIR."
		return 0
	fi
	update_data
	server_up
	pgvector_up
	first=$((rows / 2)) slice=$((rows * 15 / 100 / 100 * 100))
	[ -z "$quick" ] || slice=$((rows / 10 / 100 * 100))
	write_throughput
	write_single
	write_beside
	write_update
	ask -c "DROP TABLE w_navis, w_navis_plain, w_lean, w_small, w_small_plain,
		w_large, w_none"
}

. "$(dirname "$0")/measure_crash.sh"

# --- all of it ---------------------------------------------------------------

main() {
	local part
	need_server
	install_packages libpq-dev
	dir=$(scratch_dir measure)
	bin=$dir/bin
	make -C "$top/bench" -s BUILD="$bin" PG_CONFIG="$PG_CONFIG" >&2
	describe_machine
	for part in $parts; do part_$part; done
	title "Must reach"
	row what found wanted ""
	rule 4
	[ ${#targets[@]} = 0 ] || printf '%s\n' "${targets[@]}"
}

main
exit 0

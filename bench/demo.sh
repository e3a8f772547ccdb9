#!/usr/bin/env bash
# The demo: from a machine with only git and bash to nearest words by a navis
# index, shown beside the same query by an exact scan.
#
#   bash bench/demo.sh            one or two minutes; leaves nothing running
#   bash bench/demo.sh --keep     leaves the server running, says how to use it
#
# Installs what is missing from Debian, builds a copy of the sources, installs
# the extension and starts a private server in a scratch directory.  Works as
# root or with sudo.  Exit status 0: everything was as it should be.

. "$(dirname "$0")/../test/lib.sh"

words="king paris piano tuesday virus"
shown=5            # neighbours shown of a word
held_out=berlin    # one of the words kept out of the index, inserted later
neighbour=vienna   # a word that should then find it
rounds=5           # timed passes over the held-out words, index
least_recall=0.95  # below it the demo fails

keep=no
case "${1:-}" in
	"") ;;
	--keep) keep=yes ;;
	-h | --help) sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; exit 0 ;;
	*) say "usage: bash bench/demo.sh [--keep]"; exit 2 ;;
esac

dir=
job=
cleanup() {
	local status=$?
	trap - EXIT
	[ -z "$job" ] || kill -- "-$job" 2>/dev/null || true
	if [ -n "$dir" ] && { [ $keep = no ] || [ $status != 0 ]; }; then
		if [ $status != 0 ] && [ -f "$dir/server.log" ]; then
			say "The server's log ends:"
			as_root tail -n 20 "$dir/server.log" >&2
		fi
		stop_server "$dir"
		as_root rm -rf "$dir"
	fi
	[ $status = 0 ] || printf '\nThe demo FAILED (status %s).\n' "$status" >&2
	exit $status
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# --- output ------------------------------------------------------------------

step_number=0
step() {
	step_number=$((step_number + 1))
	printf '\n%d. %s\n' $step_number "$1"
}
fact() { printf '   %-22s %s\n' "$1" "$2"; }
fail() { say "   FAILED: $1"; exit 1; }

# check NAME FOUND EXPECTED
check() { [ "$2" = "$3" ] || fail "$1 is \"$2\", expected \"$3\""; }

# draw NAME DONE TOTAL: a line that is drawn again and again; where output is
# not a terminal, a line when the name changes.
drawn=
draw() {
	local name=$1 done=$2 total=$3 width=30 full bar
	[ "$total" -gt 0 ] 2>/dev/null || { done=0 total=1; }
	[ "$done" -le "$total" ] || done=$total
	full=$((done * width / total))
	bar=$(printf '%*s' $full '' | tr ' ' '#')$(printf '%*s' $((width - full)) '' | tr ' ' '.')
	if [ -t 1 ]; then
		printf '\r   %-26s [%s] %3d %%\033[K' "$name" "$bar" $((done * 100 / total))
	elif [ "$name" != "$drawn" ]; then
		printf '   ... %s\n' "$name"
	fi
	drawn=$name
}
undraw() {
	drawn=
	if [ -t 1 ]; then printf '\r\033[K'; fi
}

# follow LOG STATE COMMAND...: runs the command, its output into LOG, and draws
# what the function STATE prints meanwhile: name|done|total.
follow() {
	local log=$1 state=$2 status=0 name done total
	shift 2
	set -m # a process group of its own, to be ended as a whole
	"$@" </dev/null >"$log" 2>&1 &
	job=$!
	set +m
	while kill -0 "$job" 2>/dev/null; do
		# Through a file: a signal is handled between commands, not in them.
		$state >"$dir/state" || true
		if IFS='|' read -r name done total <"$dir/state"; then
			draw "$name" "${done:-0}" "${total:-0}"
		fi
		sleep 0.2
	done
	wait "$job" || status=$?
	job=
	undraw
	[ $status = 0 ] || { cat "$log" >&2; fail "$*"; }
}

now() { date +%s.%N; }
since() { awk -v a="$1" -v b="$(now)" 'BEGIN { printf "%.1f s", b - a }'; }

# One value, or rows with | between columns.
ask() { psql -XAtq -v ON_ERROR_STOP=1 "$@"; }

# --- steps -------------------------------------------------------------------

compiled_share() {
	local all done
	all=$(ls "$top"/src/*/*.c | wc -l)
	done=$(ls "$dir"/src/src/*/*.o 2>/dev/null | wc -l)
	echo "compiling|$done|$all"
}

start_everything() {
	local start
	step "Build and start"
	need_server
	as_root true # a password is asked for here, if at all
	dir=$(scratch_dir demo)
	fact "packages" "in place"
	start=$(now)
	follow "$dir/build.log" compiled_share build_in "$dir"
	fact "navis" "$(sed -n "s/^default_version = '\(.*\)'/\1/p" "$top/navis.control"), compiled and installed in $(since "$start")"
	start=$(now)
	start_server "$dir"
	fact "server" "PostgreSQL $(ask -c 'SHOW server_version'), private, in $dir, up in $(since "$start")"
}

# Every hundredth word is kept out of the table: those are the questions.
load_words() {
	local start
	step "20,000 English words (GloVe), 100 dimensions"
	start=$(now)
	ask <<-'SQL'
		CREATE EXTENSION navis;
		CREATE TABLE all_words (id int GENERATED ALWAYS AS IDENTITY,
			word text, embedding real[]);
	SQL
	gzip -cd "$top/bench/data/words.tsv.gz" |
		ask -c "COPY all_words (word, embedding) FROM STDIN"
	ask <<-'SQL'
		CREATE TABLE words AS
			SELECT * FROM all_words WHERE id % 100 <> 50 ORDER BY id;
		CREATE TABLE questions AS
			SELECT * FROM all_words WHERE id % 100 = 50 ORDER BY id;
		ALTER TABLE words ADD PRIMARY KEY (word);
		DROP TABLE all_words;
		VACUUM ANALYZE words, questions;
	SQL
	fact "loaded in" "$(since "$start")"
	fact "table words" "$(ask -c "SELECT to_char(count(*), 'FM999,999') || ' rows, ' ||
		to_char(pg_table_size('words') / 1e6, 'FM990.0') || ' MB' FROM words")"
	fact "table questions" "$(ask -c "SELECT count(*) || ' words that are not in the other table' FROM questions")"
}

build_state() {
	ask 2>/dev/null <<-'SQL'
		SELECT replace(phase, 'building index: ', ''), tuples_done, tuples_total
		FROM pg_stat_progress_create_index
		WHERE index_relid IS NOT NULL;
	SQL
}

create_index() {
	local start sql="CREATE INDEX words_nearest ON words USING navis (embedding real_cosine_ops)"
	step "$sql;"
	start=$(now)
	follow "$dir/create.log" build_state ask -c "$sql"
	fact "built in" "$(since "$start")"
	ask -F '|' >"$dir/info" <<-'SQL'
		SELECT 'state', state FROM navis_index_info('words_nearest')
		UNION ALL SELECT 'graph', format('%s vertices, %s links each on average',
			to_char(vertices, 'FM999,999'), round(average_degree::numeric, 1))
			FROM navis_index_info('words_nearest')
		UNION ALL SELECT 'on disk', format(
			'%s MB: edge lists %s, vectors %s, codes and maps %s, journal %s',
			to_char((edge_bytes + vector_bytes + state_bytes +
				pg_relation_size('words_nearest')) / 1e6, 'FM990.0'),
			to_char(edge_bytes / 1e6, 'FM990.0'),
			to_char(vector_bytes / 1e6, 'FM990.0'),
			to_char(state_bytes / 1e6, 'FM990.0'),
			to_char(pg_relation_size('words_nearest') / 1e6, 'FM990.0'))
			FROM navis_index_info('words_nearest')
		UNION ALL SELECT 'in memory', format(
			'%s bytes a vector (400 bytes long): %s of code, the rest maps',
			round(memory_per_vector::numeric), pq_bytes)
			FROM navis_index_info('words_nearest')
		UNION ALL SELECT 'page cache', format('%s MB of at most %s MB',
			to_char(cache_bytes / 1e6, 'FM990.0'),
			to_char(cache_limit / 1e6, 'FM990'))
			FROM navis_index_info('words_nearest')
		UNION ALL SELECT 'engine', format('%s, %s, %s search threads',
			io_method, simd, search_threads)
			FROM navis_index_info('words_nearest');
	SQL
	while IFS='|' read -r name value; do fact "$name" "$value"; done <"$dir/info"
	check "the state of the index" "$(sed -n 's/^state|//p' "$dir/info")" ready
}

# The same query by index and by exact scan, as functions with fixed plans.
make_functions() {
	local method settings
	for method in index exact; do
		settings="SET plan_cache_mode = force_generic_plan"
		[ $method = index ] || settings+="
			SET enable_indexscan = off
			SET max_parallel_workers_per_gather = 0"
		ask <<-SQL
			CREATE FUNCTION nearest_by_$method(q real[])
			RETURNS TABLE (word text, distance float8)
			LANGUAGE plpgsql $settings AS \$\$
			BEGIN
				RETURN QUERY SELECT w.word, w.embedding <=> q FROM words w
					ORDER BY w.embedding <=> q LIMIT 10;
			END \$\$;

			-- Asks every question so many times; the clock runs in the server.
			CREATE FUNCTION measure_$method(rounds int)
			RETURNS TABLE (question int, words text[], us float8)
			LANGUAGE plpgsql $settings AS \$\$
			DECLARE
				q record;
				started timestamptz;
			BEGIN
				FOR q IN SELECT s.id, s.embedding
					FROM generate_series(1, rounds) r, questions s ORDER BY r, s.id
				LOOP
					started := clock_timestamp();
					words := ARRAY(SELECT w.word FROM words w
						ORDER BY w.embedding <=> q.embedding LIMIT 10);
					us := 1e6 * extract(epoch FROM clock_timestamp() - started);
					question := q.id;
					RETURN NEXT;
				END LOOP;
			END \$\$;
		SQL
	done
}

# show_word WORD: rank, word and distance by both methods, side by side.
show_word() {
	local rank index exact distance mark
	printf '\n   %-12s %-18s %-18s %s\n' "$1" "by index" "by exact scan" "distance"
	ask -v w="$1" -v n=$shown >"$dir/shown" <<-'SQL'
		WITH q AS (SELECT embedding FROM words WHERE word = :'w'),
		i AS (SELECT row_number() OVER (ORDER BY distance) AS rank, r.*
			FROM q, nearest_by_index(q.embedding) r WHERE r.word <> :'w'),
		e AS (SELECT row_number() OVER (ORDER BY distance) AS rank, r.*
			FROM q, nearest_by_exact(q.embedding) r WHERE r.word <> :'w')
		SELECT rank, coalesce(i.word, '-'), coalesce(e.word, '-'),
			to_char(coalesce(i.distance, e.distance), '0.999')
		FROM i FULL JOIN e USING (rank) WHERE rank <= :n ORDER BY rank;
	SQL
	while IFS='|' read -r rank index exact distance; do
		mark="differs"
		[ "$index" != "$exact" ] || mark="="
		printf '   %10s   %-18s %-18s %s   %s\n' "$rank." "$index" "$exact" "$distance" "$mark"
	done <"$dir/shown"
}

show_words() {
	local word plan
	step "Nearest words:  SELECT word FROM words ORDER BY embedding <=> \$1 LIMIT 10;"
	plan=$(ask -c "EXPLAIN (COSTS OFF) SELECT word FROM words ORDER BY embedding <=>
		(SELECT embedding FROM questions LIMIT 1) LIMIT 10")
	grep -q 'Index Scan using words_nearest' <<<"$plan" ||
		{ say "$plan"; fail "the planner does not take the index"; }
	for word in $words; do show_word "$word"; done
}

measure() {
	step "200 words that are not in the index, 10 nearest of each, one session, warm"
	ask >"$dir/figures" <<-SQL
		CREATE TEMP TABLE answers (method text, question int, words text[],
			us float8);
		SELECT count(*) AS warm_up FROM measure_exact(1) \gset
		INSERT INTO answers SELECT 'exact', * FROM measure_exact(1);
		SELECT count(*) AS warm_up FROM measure_index(2) \gset
		SELECT pg_stat_force_next_flush() \g /dev/null
		SELECT idx_scan AS before FROM pg_stat_user_indexes
			WHERE indexrelname = 'words_nearest' \gset
		INSERT INTO answers SELECT 'index', * FROM measure_index($rounds);
		SELECT 'mode', mode, hops, edge_pages, cache_hits, explored, vectors,
			bytes_read, rows, rerank_window FROM navis_last_scan();
		SELECT pg_stat_force_next_flush() \g /dev/null
		SELECT 'scans', idx_scan - :before FROM pg_stat_user_indexes
			WHERE indexrelname = 'words_nearest';
		SELECT 'runs', count(*) FROM answers WHERE method = 'index';
		SELECT 'recall', to_char(avg(cardinality(ARRAY(
				SELECT unnest(i.words) INTERSECT SELECT unnest(e.words)))) / 10,
				'FM0.0000')
			FROM answers i JOIN answers e USING (question)
			WHERE i.method = 'index' AND e.method = 'exact';
		SELECT 'time', method, count(*),
			to_char(percentile_cont(0.5) WITHIN GROUP (ORDER BY us) / 1000,
				'FM990.00'),
			to_char(percentile_cont(0.99) WITHIN GROUP (ORDER BY us) / 1000,
				'FM990.00')
			FROM answers GROUP BY method ORDER BY method DESC;
	SQL
	figure() { sed -n "s/^$1|//p" "$dir/figures"; }
	local recall mode hops pages cached explored vectors bytes rows window
	local name n p50 p99
	recall=$(figure recall)
	fact "recall@10" "$recall against the exact scan"
	figure time | while IFS='|' read -r name n p50 p99; do
		fact "latency, $name" "p50 $p50 ms, p99 $p99 ms (over $n runs)"
	done
	IFS='|' read -r mode hops pages cached explored vectors bytes rows window \
		< <(figure mode)
	fact "the last scan" "answered by the $mode: $hops hops, $pages edge pages ($cached from the cache),"
	fact "" "$explored vertices explored, $vectors vectors read for exact distances, $bytes bytes"
	check "scans of the index" "$(figure scans)" "$(figure runs)"
	check "the way the index answered" "$mode" graph
	[ "$hops" -gt 0 ] && [ "$pages" -gt 0 ] || fail "the graph was not used"
	awk -v r="$recall" -v least=$least_recall 'BEGIN { exit !(r >= least) }' ||
		fail "recall@10 is $recall, expected at least $least_recall"
}

# The nearest word to $1 but itself, how the index answered, and rows compared
# beside the graph.
nearest_to() {
	ask -v w="$1" <<-'SQL'
		SELECT embedding::text AS q FROM words WHERE word = :'w' \gset
		SELECT string_agg(word, ' ' ORDER BY distance) AS found
			FROM (SELECT * FROM nearest_by_index(:'q') WHERE word <> :'w'
				LIMIT 5) f \gset
		SELECT :'found', mode, pending FROM navis_last_scan();
	SQL
}

insert_word() {
	local before after mode pending
	step "A row inserted now is found now"
	IFS='|' read -r before mode pending < <(nearest_to $neighbour)
	fact "nearest to $neighbour" "$before"
	ask -c "INSERT INTO words SELECT * FROM questions WHERE word = '$held_out'"
	fact "inserted" "$held_out"
	IFS='|' read -r after mode pending < <(nearest_to $neighbour)
	fact "nearest to $neighbour" "$after"
	if [ "$pending" = 0 ]; then
		fact "answered by" "the $mode: the row is linked into it already"
	else
		fact "answered by" "the $mode, and $pending row that is not linked yet, compared exactly"
	fi
	check "the way the index answered" "$mode" graph
	grep -qw $held_out <<<"$after" || fail "$held_out was not found"
	if grep -qw $held_out <<<"$before"; then
		fail "$held_out was there before"
	fi
	expected=$after
}

# Until the worker is up, answers are exact and slow: that is no failure.
restart() {
	local found mode="" pending start tries=0
	step "After a restart of the server"
	start=$(now)
	restart_server "$dir"
	while [ $tries -lt 100 ]; do
		IFS='|' read -r found mode pending < <(nearest_to $neighbour)
		check "the answer after the restart" "$found" "$expected"
		[ "$mode" != graph ] || break
		tries=$((tries + 1))
		sleep 0.2
	done
	fact "nearest to $neighbour" "$found"
	fact "answered by" "the $mode, $(since "$start") after the restart began"
	check "the way the index answered" "$mode" graph
}

finish() {
	printf '\nEverything was as it should be, in %s.\n' "$(since "$began")"
	if [ $keep = no ]; then
		echo "The server is stopped and its files are removed; the extension stays installed."
		return
	fi
	cat <<-TEXT

		The server is running:
		   psql -h $dir -U postgres postgres
		   SELECT word FROM words ORDER BY embedding <=>
		     (SELECT embedding FROM words WHERE word = 'coffee') LIMIT 10;
		   SELECT * FROM navis_last_scan() \gx
		   SELECT * FROM navis_index_info('words_nearest') \gx
		To stop it and remove its files:
		   $stop_command
	TEXT
}

began=$(now)
echo "navis demo: the nearest words, by index and by exact scan"
start_everything
load_words
create_index
make_functions
show_words
measure
insert_word
restart
if [ "$(id -u)" = 0 ]; then
	stop_command="runuser -u $(server_user) -- $bindir/pg_ctl -D $dir/data -m fast stop; rm -rf $dir"
else
	stop_command="$bindir/pg_ctl -D $dir/data -m fast stop; rm -rf $dir"
fi
finish

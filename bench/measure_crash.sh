# Parts `restart` and `wal` of measure.sh, which reads this file: how soon the
# graph answers after a crash, and what an index writes into WAL.

# --- restart -----------------------------------------------------------------

now() { date +%s.%N; }

# Ends the server as a crash would: no process gets to do anything any more.
kill_server() {
	local postmaster status children=()
	postmaster=$(as_root head -n 1 "$dir/data/postmaster.pid")
	as_root kill -STOP "$postmaster"
	for status in $(grep -ls "^PPid:[[:space:]]*$postmaster\$" \
		/proc/[0-9]*/status); do
		children+=("$(basename "$(dirname "$status")")")
	done
	as_root kill -KILL "${children[@]}" "$postmaster"
	while as_root kill -0 "${children[@]}" "$postmaster" 2>/dev/null; do
		sleep 0.02
	done
	as_root rm -f "$dir/data/postmaster.pid"
}

# missing_rows: those that the engine had not got when it opened the index, and
# all rows.
missing_rows() {
	ask -F ' ' -c "SELECT rows_inserted + unlinked_rows, live_rows
		FROM navis_stat_indexes, navis_index_info('r_navis_i')
		WHERE indexrelname = 'r_navis_i'"
}

# A session's first search, as an application would send it, and how it was
# answered.
first_search() {
	ask -F ' ' <<-SQL | tail -n 1
		SET enable_seqscan = off;
		SELECT id FROM r_navis ORDER BY v <->
			(SELECT v FROM r_navis ORDER BY id LIMIT 1) LIMIT 10;
		SELECT mode, hops FROM navis_last_scan();
	SQL
}

# crash_and_time NAME: kills the server, starts it, and searches from the moment
# at which it takes connections.  Prints a row; sets `answered`, seconds until
# the first answer by the graph, and `missing`, rows that were not in the last
# published checkpoint.
crash_and_time() {
	local began up mode=none hops=0 exact=0 rows linked
	kill_server
	began=$(now)
	as_server pg_ctl -D "$dir/data" -l "$dir/server.log" -W -s start
	until ask -c "SELECT 1" >/dev/null 2>&1; do sleep 0.01; done
	up=$(now)
	while :; do
		read -r mode hops < <(first_search)
		answered=$(calculate "$(now) - $up")
		[ "$mode" != graph ] || [ "$hops" = 0 ] || break
		exact=$((exact + 1))
		[ "${answered%.*}" -lt 600 ] || break
	done
	read -r missing rows < <(missing_rows)
	until [ "$(ask -c "SELECT state = 'ready' AND pending_rows = 0
			FROM navis_index_info('r_navis_i')")" = t ]; do sleep 0.1; done
	linked=$(calculate "$(now) - $up")
	row "$1" "$rows" "$missing" "$(calculate "$up - $began")" "$answered" \
		"$exact" "$mode" "$linked"
}

restart_rows=20000

part_restart() {
	local first=80000 answered missing sql
	server_up
	title "After a crash"
	text "$first rows of glove100k are indexed, $restart_rows more are inserted" \
		"in one COPY, and every process of the server gets SIGKILL. Seconds are" \
		"counted from the first connection that the server accepts (recovery of" \
		"PostgreSQL is before that) to the first answer that the graph gave, by" \
		"the statistics of the scan; default settings. Missing: rows that were not" \
		"in the last published checkpoint; they are read from the table by the" \
		"first session and searched exactly until they are linked." \
		"*As it comes*: right after COMMIT; the engine has published checkpoints" \
		"while rows were linked. *None published*: \`navis.insert_threads = 0\`" \
		"until the crash, so no row is linked and all $restart_rows are missing" \
		"from the last published checkpoint; after it the default again." ""
	"$bin/sql_bench" load r_navis --base "${glove}_base.fbin" --rows $first
	ask -c "CREATE INDEX r_navis_i ON r_navis USING navis (v)"
	row "" rows missing "s to start" \
		"**s to the graph's answer**" "exact answers before" "answered by" \
		"s until linked"
	rule 8
	restart_insert
	crash_and_time "as it comes"
	ask -c "DELETE FROM r_navis WHERE id >= $first" -c "VACUUM r_navis" \
		-c "REINDEX INDEX r_navis_i" \
		-c "ALTER SYSTEM SET navis.insert_threads = 0"
	restart_server "$dir"
	restart_insert
	ask -c "ALTER SYSTEM RESET navis.insert_threads"
	crash_and_time "none published"
	target "graph answers after kill -9, $missing rows inserted since the last published checkpoint" \
		"$answered s" "<= 5 s" "$answered <= 5 && $missing >= $restart_rows"
	ask -c "DROP TABLE r_navis"
}

restart_insert() {
	"$bin/sql_bench" insert r_navis --base "${glove}_base.fbin" --first $first \
		--rows $restart_rows --method copy >/dev/null
}

# --- wal ---------------------------------------------------------------------

# wal_insert TABLE METHOD FIRST ROWS: prints records, bytes of records, and
# bytes of full-page images, of generic records and of all.
wal_insert() {
	local from to
	from=$(ask -c "SELECT pg_current_wal_insert_lsn()")
	"$bin/sql_bench" insert "$1" --base "${glove}_base.fbin" --first "$3" \
		--rows "$4" --method "$2" >/dev/null
	to=$(ask -c "SELECT pg_current_wal_flush_lsn()")
	as_server pg_waldump -p "$dir/data/pg_wal" -s "$from" -e "$to" --stats \
		>"$dir/waldump" 2>/dev/null || true
	# Columns: number, bytes of records, bytes of images, both; with shares.
	awk '{ gsub(/\([^)]*\)|\[[^]]*\]/, "") }
		$1 == "Generic" { n = $2; bytes = $3; images = $4 }
		$1 == "Total" { all = $3; all_images = $4 }
		END { print n + 0, bytes + 0, images + 0, all + 0, all_images + 0 }' \
		"$dir/waldump"
}

# wal_line NAME METHOD FIRST ROWS: sets `each`, bytes a row.
wal_line() {
	local with without
	read -r -a with < <(wal_insert r_wal "$2" "$3" "$4")
	read -r -a without < <(wal_insert r_plain "$2" "$3" "$4")
	each=$(calculate "${with[1]} / $4" %.1f)
	row "$1" "$4" "${with[0]}" "**$each**" "$(calculate "${with[2]} / $4" %.1f)" \
		"$(calculate "(${with[3]} - ${without[3]}) / $4" %.1f)" \
		"$(calculate "${without[3]} / $4" %.1f)" \
		"$(calculate "${without[4]} / $4" %.1f)"
}

part_wal() {
	local at=50000 method each
	server_up
	title "WAL"
	text "Rows of glove100k inserted by one session into a table of $at rows with" \
		"an index on the vectors and into one without, by pg_waldump --stats." \
		"The index's records are those of the resource manager Generic; nothing" \
		"else writes such. Full-page images apart: they depend on how often" \
		"PostgreSQL makes checkpoints. Between checkpoints: one is made before" \
		"the first line, none after." ""
	for table in r_wal r_plain; do
		"$bin/sql_bench" load $table --base "${glove}_base.fbin" --rows $at
	done
	ask -c "ALTER TABLE r_wal SET (autovacuum_enabled = off)" \
		-c "ALTER TABLE r_plain SET (autovacuum_enabled = off)" \
		-c "CREATE INDEX r_wal_i ON r_wal USING navis (v)" -c CHECKPOINT
	row "" rows "generic records" "**bytes a row, index**" "images a row, index" \
		"bytes a row, all WAL with less without index" \
		"bytes a row, table" "images a row, table"
	rule 8
	wal_line "right after a checkpoint, one COPY" copy $at 1000
	at=$((at + 1000))
	for method in copy multi rows; do
		wal_line "$method" $method $at 5000
		target "WAL of the index a row, without full-page images, $method" \
			"$each bytes" "< 100 bytes" "$each < 100"
		at=$((at + 5000))
	done
	ask -c "DROP TABLE r_wal, r_plain"
}

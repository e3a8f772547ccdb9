#!/usr/bin/env bash
# All tests: engine unit tests (plain, ASan+UBSan, TSan), pg_regress,
# isolation and TAP tests on private servers.  Installs what is missing from
# Debian.  Ends with "N passed, N failed".
#
#   bash test/all.sh              everything
#   bash test/all.sh unit         one or more of: unit bench regress isolation tap

. "$(dirname "$0")/lib.sh"

parts=${*:-unit bench regress isolation tap}
passed=0 failed=0
for part in $parts; do
	case $part in
		unit | bench | regress | isolation | tap) ;;
		*) say "unknown part $part"; exit 2 ;;
	esac
done

need_tests
dir=$(scratch_dir test)
trap 'stop_server "$dir"; as_root rm -rf "$dir"' EXIT

# tally LOG PASS-REGEX FAIL-REGEX
tally() {
	local p f
	p=$(grep -cE "$2" "$1" || true)
	f=$({ grep -E "$3" "$1" || true; } | sort -u | wc -l)
	passed=$((passed + p)) failed=$((failed + f))
	say "   $p passed, $f failed"
}

# A step that ends badly without a failed test counts as one failure.
check_step() {
	local status=$1 before=$2 name=$3
	if [ "$status" != 0 ] && [ "$failed" = "$before" ]; then
		say "   $name ended with status $status"
		failed=$((failed + 1))
	fi
}

run_unit() {
	local before=$failed status=0 variant
	for variant in plain asan tsan; do
		say "== engine unit tests ($variant)"
		status=0
		as_server make -C "$dir/src/test/unit" -s -k -j"$(nproc)" all \
			VARIANTS="$variant" >"$dir/build-$variant.log" 2>&1 ||
			cat "$dir/build-$variant.log" >&2
		as_server make -C "$dir/src/test/unit" -s -k -j"$(nproc)" \
			--output-sync=target check VARIANTS="$variant" \
			>"$dir/unit-$variant.log" 2>&1 || status=$?
		[ $status = 0 ] || grep -vE '^\[ +(RUN|OK) ' "$dir/unit-$variant.log" >&2
		before=$failed
		tally "$dir/unit-$variant.log" '^\[ +OK \]' '^\[ +FAILED +\] [A-Za-z0-9_]+$'
		check_step $status $before "unit tests ($variant)"
	done
}

run_bench() {
	local before=$failed status=0
	say "== tests of the benchmark tools"
	as_server make -C "$dir/src/bench" -s -j"$(nproc)" check-build \
		>"$dir/bench.log" 2>&1 || cat "$dir/bench.log" >&2
	as_server make -C "$dir/src/bench" -s -k check >"$dir/bench.log" 2>&1 ||
		status=$?
	[ $status = 0 ] || grep -vE '^\[ +(RUN|OK) ' "$dir/bench.log" >&2
	tally "$dir/bench.log" '^\[ +OK \]|^ok ' '^\[ +FAILED +\] [A-Za-z0-9_]+$|^not ok '
	check_step $status $before "tests of the benchmark tools"
}

run_regress() {
	local before=$failed status=0
	say "== pg_regress"
	as_server make -C "$dir/src" -s installcheck PG_CONFIG="$PG_CONFIG" \
		TAP_TESTS= ISOLATION= PGHOST="$PGHOST" PGPORT="$PGPORT" \
		PGUSER=postgres >"$dir/regress.log" 2>&1 || status=$?
	[ $status = 0 ] || { cat "$dir/regress.log" "$dir"/src/regression.diffs >&2 || true; }
	tally "$dir/regress.log" '^(test .*|ok .*|     [a-z_]+ +)\.\.\. ok|^ok +[0-9]' '\.\.\. FAILED|^not ok'
	check_step $status $before pg_regress
}

run_isolation() {
	local before=$failed status=0
	compgen -G "$dir/src/test/isolation/specs/*.spec" >/dev/null || return 0
	say "== isolation tests"
	as_server make -C "$dir/src" -s installcheck PG_CONFIG="$PG_CONFIG" \
		TAP_TESTS= REGRESS= PGHOST="$PGHOST" PGPORT="$PGPORT" \
		PGUSER=postgres >"$dir/isolation.log" 2>&1 || status=$?
	[ $status = 0 ] || { cat "$dir/isolation.log" "$dir"/src/output_iso/regression.diffs >&2 || true; }
	tally "$dir/isolation.log" '\.\.\. ok|^ok +[0-9]' '\.\.\. FAILED|^not ok'
	check_step $status $before "isolation tests"
}

# Two files at a time, on servers of their own; the ones that last long first:
# the rounds of 019, then the longest texts.
run_tap() {
	local before=$failed status=0 pgxs perl5 files
	compgen -G "$dir/src/test/t/*.pl" >/dev/null || return 0
	say "== TAP tests"
	pgxs=$(dirname "$("$PG_CONFIG" --pgxs)")
	perl5=$(cd "$pgxs/../test/perl" && pwd)
	files="test/t/019_crash.pl $(cd "$dir/src" && ls -S test/t/*.pl | grep -v 019_crash | tr '\n' ' ')"
	as_server env -u PGHOST -u PGPORT -u PGUSER -u PGDATABASE \
		PERL5LIB="$perl5:$dir/src/test/t" \
		PG_REGRESS="$pgxs/../test/regress/pg_regress" \
		TESTDIR="$dir/src" TESTDATADIR="$dir/src/tmp_check" \
		TESTLOGDIR="$dir/src/tmp_check/log" \
		sh -c "cd '$dir/src' && prove -v -j2 --timer $files" \
		>"$dir/tap.log" 2>"$dir/tap.err" || status=$?
	[ $status = 0 ] || { cat "$dir/tap.err"; grep -vE '^(ok |#)' "$dir/tap.log"; } >&2
	tally "$dir/tap.log" '^ok [0-9]' '^not ok [0-9]'
	check_step $status $before "TAP tests"
}

say "== build"
build_in "$dir" COPT=-Werror
for part in $parts; do
	case $part in
		unit) run_unit ;;
		bench) run_bench ;;
		regress | isolation)
			# Fast builds; nothing that holds a VACUUM back now and then.
			[ -d "$dir/data" ] || start_server "$dir" "fsync = off" \
				"autovacuum = off" "navis.casr_warmup = 50" \
				"navis.collect_interval = 3600"
			"run_$part" ;;
		tap) run_tap ;;
	esac
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]

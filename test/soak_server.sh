#!/usr/bin/env bash
# Crashes of a real server, for as many rounds as there is time for.
#
#   bash test/soak.sh server                           200 rounds from seed 1
#   bash test/soak.sh server --rounds 20 --seed 7      a server of 20 rounds
#
# A round: sessions that change tables with navis indexes, SIGKILL at a random
# moment, restart, questions (test/t/NavisCrash.pm).  A server goes through 20
# rounds, one seed; the next server has the next seed.  Ends with 1 at the first
# discrepancy, and keeps the server's directory then.

. "$(dirname "$0")/lib.sh"

rounds=200 seed=1
while [ $# -ge 2 ]; do
	case $1 in
		--rounds | --seed) printf -v "${1#--}" %s "$2" ;;
		*) break ;;
	esac
	shift 2
done
[ $# = 0 ] || { sed -n '4,5s/^# *//p' "$0" >&2; exit 2; }

need_tests
dir=$(scratch_dir soak)
say "building in $dir"
build_in "$dir" COPT="-Werror -DNV_ASSERT"
pgxs=$(dirname "$("$PG_CONFIG" --pgxs)")
status=0
as_server env -u PGHOST -u PGPORT -u PGUSER -u PGDATABASE \
	PERL5LIB="$(cd "$pgxs/../test/perl" && pwd):$dir/src/test/t" \
	PG_REGRESS="$pgxs/../test/regress/pg_regress" \
	TESTDIR="$dir/src" TESTDATADIR="$dir/src/tmp_check" \
	TESTLOGDIR="$dir/src/tmp_check/log" \
	NAVIS_CRASH_ROUNDS="$rounds" NAVIS_CRASH_SEED="$seed" \
	sh -c "cd '$dir/src' && perl test/t/019_crash.pl" 2>&1 |
	grep --line-buffered -v '^ok ' || status=$?
if [ $status != 0 ]; then
	say "kept: $dir/src/tmp_check"
	exit 1
fi
as_root rm -rf "$dir"

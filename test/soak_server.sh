#!/usr/bin/env bash
# A real server, for as long as there is time for.
#
#   bash test/soak.sh server                           200 crashes from seed 1
#   bash test/soak.sh server --rounds 20 --seed 7      a server of 20 crashes
#   bash test/soak.sh stress                           ten minutes of writes
#   bash test/soak.sh stress --seconds 60 --rate 500   transactions a second
#
# server: a round: sessions that change tables with navis indexes, SIGKILL at a random
# moment, restart, questions (test/t/NavisCrash.pm).  A server goes through 20
# rounds, one seed; the next server has the next seed.  stress: sessions write,
# search and vacuum, by default as fast as they can (test/t/012_stress.pl).
# Ends with 1 at the first discrepancy, and keeps the server's directory then.

. "$(dirname "$0")/lib.sh"

kind=${1:-server} rounds=200 seed=1 seconds=600 rate=1000000
[ $# = 0 ] || shift
while [ $# -ge 2 ]; do
	case $kind$1 in
		server--rounds | server--seed | stress--seconds | stress--rate)
			printf -v "${1#--}" %s "$2" ;;
		*) break ;;
	esac
	shift 2
done
[ $# = 0 ] || { sed -n '4,7s/^# *//p' "$0" >&2; exit 2; }
case $kind in
	server) test=019_crash.pl ;;
	stress) test=012_stress.pl ;;
esac

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
	NAVIS_STRESS_SECONDS="$seconds" NAVIS_STRESS_RATE="$rate" \
	sh -c "cd '$dir/src' && perl test/t/$test" 2>&1 |
	grep --line-buffered -v '^ok ' || status=$?
if [ $status != 0 ]; then
	say "kept: $dir/src/tmp_check"
	exit 1
fi
as_root rm -rf "$dir"

#!/usr/bin/env bash
# Memory limits: which hierarchy of control groups is taken and what is written
# into it, on directories that look like one; and, where a group can be made
# here, that the limit holds.  TAP output.

set -uo pipefail

dir=$(mktemp -d "${TMPDIR:-/tmp}/navis-limits-XXXXXX")
trap 'rm -rf "$dir"' EXIT
n=0 failed=0
say() { printf '%s\n' "$*" >&2; }
. "$(dirname "$0")/../limits.sh"

ok() { # STATUS NAME
	n=$((n + 1))
	if [ "$1" = 0 ]; then echo "ok $n - $2"; else
		echo "not ok $n - $2"
		failed=1
	fi
}

# finds NAME EXPECTED: from NAVIS_CGROUP_ROOT.
finds() {
	local found
	found=$(limit_find 2>"$dir/err")
	[ "$found" = "$2" ]
	ok $? "$1"
}

# without NAME REGEX: nothing is found, and the message says why.
without() {
	limit_find >/dev/null 2>"$dir/err"
	[ $? != 0 ] && grep -qE "$2" "$dir/err"
	ok $? "$1"
}

# --- Detection ---

export NAVIS_CGROUP_ROOT=$dir/none
mkdir "$dir/none"
without "no hierarchy" "no memory controller under $dir/none"

NAVIS_CGROUP_ROOT=$dir/two
mkdir "$dir/two"
echo "cpuset cpu io memory pids" >"$dir/two/cgroup.controllers"
echo "cpu memory" >"$dir/two/cgroup.subtree_control"
finds "version 2 that passes memory on" "2 $dir/two"
echo "cpu pids" >"$dir/two/cgroup.subtree_control"
finds "version 2 that is asked to" "2 $dir/two"
[ "$(cat "$dir/two/cgroup.subtree_control")" = +memory ]
ok $? "the controller was asked for"
rm "$dir/two/cgroup.subtree_control"
mkdir "$dir/two/cgroup.subtree_control" # cannot be written to, even by root
without "version 2 that refuses" "does not pass its memory controller on"
rmdir "$dir/two/cgroup.subtree_control"
echo "cpu io pids" >"$dir/two/cgroup.controllers"
without "version 2 without memory" "no memory controller"

NAVIS_CGROUP_ROOT=$dir/one
mkdir -p "$dir/one/memory" "$dir/one/unified"
echo 9223372036854771712 >"$dir/one/memory/memory.limit_in_bytes"
: >"$dir/one/unified/cgroup.controllers"
finds "version 1 beside an empty version 2" "1 $dir/one/memory"
echo memory >"$dir/one/unified/cgroup.controllers"
echo memory >"$dir/one/unified/cgroup.subtree_control"
finds "version 2 in a mixed set-up" "2 $dir/one/unified"

# --- Making a group ---

# The kernel fills new groups with files; here this does.
made=()
mkdir() {
	command mkdir "$@" || return
	[ ${#made[@]} = 0 ] || (cd "${!#}" && touch "${made[@]}")
}
id() { echo 0; } # only root goes on

NAVIS_CGROUP_ROOT=$dir/two
echo "memory" >"$dir/two/cgroup.controllers"
echo "memory" >"$dir/two/cgroup.subtree_control"
made=(memory.max memory.swap.max cgroup.procs)
limit_begin a 64000000 2>"$dir/err"
ok $? "a group of version 2"
[ "$(cat "$limit_group/memory.max" "$limit_group/memory.swap.max")" = $'64000000\n0' ]
ok $? "its limit, and no swap"
(limited true) && grep -q '^[0-9]' "$limit_group/cgroup.procs"
ok $? "a command enters it"
[ "$(limit_peak) $(limit_kills)" = "0 0" ]
ok $? "a kernel without memory.peak"
echo 63000000 >"$limit_group/memory.peak"
printf 'low 0\noom 3\noom_kill 2\noom_group_kill 0\n' >"$limit_group/memory.events"
[ "$(limit_peak) $(limit_kills)" = "63000000 2" ]
ok $? "its peak and whom it killed"
made=(cgroup.procs)
limit_begin b 64000000 2>"$dir/err"
[ $? != 0 ] && grep -q "does not take one" "$dir/err" && [ -z "$limit_group" ]
ok $? "a group without the controller"

NAVIS_CGROUP_ROOT=$dir/one
rm -r "$dir/one/unified"
made=(memory.limit_in_bytes cgroup.procs)
limit_begin c 64000000 2>"$dir/err" &&
	[ "$(cat "$limit_group/memory.limit_in_bytes")" = 64000000 ]
ok $? "a group of version 1, where swap is not counted"
printf 'oom_kill_disable 0\nunder_oom 0\noom_kill 1\n' >"$limit_group/memory.oom_control"
echo 5 >"$limit_group/memory.max_usage_in_bytes"
[ "$(limit_peak) $(limit_kills)" = "5 1" ]
ok $? "its peak and whom it killed"
id() { echo 1000; }
limit_begin d 64000000 2>"$dir/err"
[ $? != 0 ] && grep -q "only root" "$dir/err"
ok $? "another user is told so"

# --- A real one ---

unset -f id mkdir
unset NAVIS_CGROUP_ROOT
limit_group=
if limit_begin test 60000000 2>"$dir/err"; then
	limited head -c 20000000 /dev/zero | tail -c 1 >/dev/null
	ok $? "a small process runs in a real group"
	# tail keeps all of it, for there is no end of line.
	limited sh -c 'head -c 200000000 /dev/zero | tail -n 1 >/dev/null' 2>/dev/null
	[ $? != 0 ] && [ "$(limit_kills)" -gt 0 ]
	ok $? "a large one is killed, and counted"
	group=$limit_group
	limited sleep 60 &
	sleep 0.2
	limit_end 2>"$dir/err"
	[ ! -e "$group" ]
	ok $? "what is left in it ends with it"
	wait
else
	echo "# no real group: $(cat "$dir/err")"
fi

echo "1..$n"
exit $failed

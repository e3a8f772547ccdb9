# Memory limits by control groups, version 2 or 1; sourced by run.sh.
#
#	limit_find				prints "2 DIRECTORY" or "1 DIRECTORY", the hierarchy
#							to make groups in; false, with a message, without one
#	limit_begin NAME BYTES	makes a group with that limit, page cache included;
#							false, with a message, where that cannot be done
#	limited COMMAND...		runs it, and what it starts, in the group
#	limit_peak				bytes the group has used at most; 0: not known
#	limit_kills				processes that the limit has killed; 0: none, or not known
#	limit_end				removes the group; what still runs in it is killed
#
# Needs root, a writable hierarchy and, in version 2, the memory controller in
# it.  NAVIS_CGROUP_ROOT is looked at instead of /sys/fs/cgroup.  Swap is off for
# the group where the kernel counts it.  Pages that are cached already belong to
# whoever read them first, and reading them again is free: forget_cached FILE...
# drops the clean ones before.
#
# Version 2 (kernel, Documentation/admin-guide/cgroup-v2.rst): a group has the
# files of a controller only if its parent's cgroup.subtree_control names it,
# and a parent that is not the root may name one only while no process is in
# the parent itself.

limit_group=

limit_find() {
	local root=${NAVIS_CGROUP_ROOT:-/sys/fs/cgroup} top
	# A mixed set-up keeps version 2 in a directory of its own, seldom with
	# controllers.
	for top in "$root" "$root/unified"; do
		grep -qw memory "$top/cgroup.controllers" 2>/dev/null || continue
		if ! grep -qw memory "$top/cgroup.subtree_control" 2>/dev/null &&
			! { echo +memory >"$top/cgroup.subtree_control"; } 2>/dev/null; then
			say "no memory limit: $top does not pass its memory controller on to new groups (cgroup.subtree_control; a container without its own?)"
			return 1
		fi
		echo "2 $top"
		return
	done
	if [ -e "$root/memory/memory.limit_in_bytes" ]; then
		echo "1 $root/memory"
		return
	fi
	say "no memory limit: no memory controller under $root"
	return 1
}

limit_begin() {
	local name=navis-bench-$1-$$ bytes=$2 version root
	limit_group=
	if [ "$(id -u)" != 0 ]; then
		say "no memory limit: only root may make control groups"
		return 1
	fi
	read -r version root < <(limit_find) || return 1
	if ! mkdir "$root/$name" 2>/dev/null; then
		say "no memory limit: $root cannot be written to (a container without its own?)"
		return 1
	fi
	limit_group=$root/$name
	case $version in
		2) set_limit memory.max "$bytes" memory.swap.max 0 ;;
		1) set_limit memory.limit_in_bytes "$bytes" \
			memory.memsw.limit_in_bytes "$bytes" ;;
	esac && return
	say "no memory limit: $limit_group does not take one"
	rmdir "$limit_group" 2>/dev/null
	limit_group=
	return 1
}

# set_limit FILE VALUE SWAP-FILE VALUE: the second where swap is counted.
set_limit() {
	[ -e "$limit_group/$1" ] && { echo "$2" >"$limit_group/$1"; } 2>/dev/null ||
		return 1
	{ [ ! -e "$limit_group/$3" ] || echo "$4" >"$limit_group/$3"; } 2>/dev/null ||
		true
}

limited() {
	(
		echo "$BASHPID" >"$limit_group/cgroup.procs"
		"$@"
	)
}

limit_peak() {
	cat "$limit_group/memory.peak" 2>/dev/null ||
		cat "$limit_group/memory.max_usage_in_bytes" 2>/dev/null || echo 0
}

limit_kills() {
	cat "$limit_group/memory.events" "$limit_group/memory.oom_control" \
		2>/dev/null | awk '$1 == "oom_kill" { n += $2 } END { print n + 0 }'
}

# Processes that are held up at the limit may not end of themselves.
limit_end() {
	local i
	[ -n "$limit_group" ] || return 0
	for ((i = 0; i < 100; i++)); do
		rmdir "$limit_group" 2>/dev/null && break
		if [ $i = 50 ]; then
			say "killing what is left in $limit_group"
			xargs -r kill -9 <"$limit_group/cgroup.procs" 2>/dev/null || true
		fi
		sleep 0.1
	done
	limit_group=
}

forget_cached() {
	sync -f "$1" 2>/dev/null || sync
	find "$@" -type f -exec dd if={} iflag=nocache count=0 status=none \;
}

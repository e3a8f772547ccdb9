# Memory limits by control groups, version 2 or 1; sourced by run.sh.
#
#	limit_begin NAME BYTES	makes a group with that limit, page cache included;
#							false, with a message, where that cannot be done
#	limited COMMAND...		runs it, and what it starts, in the group
#	limit_peak				bytes the group has used at most
#	limit_end				removes the group; its processes must be gone
#
# Needs root, a writable hierarchy and, in version 2, the memory controller
# there.  Swap is off for the group where the kernel counts it.  Pages that are
# cached already belong to whoever read them first, and reading them again is
# free: forget_cached FILE... drops the clean ones before.

limit_group=

limit_begin() {
	local name=navis-bench-$1-$$ bytes=$2 root
	limit_group=
	if [ "$(id -u)" != 0 ]; then
		say "no memory limit: only root may make control groups"
		return 1
	fi
	if grep -qw memory /sys/fs/cgroup/cgroup.controllers 2>/dev/null; then
		root=/sys/fs/cgroup
		grep -qw memory $root/cgroup.subtree_control 2>/dev/null ||
			echo +memory 2>/dev/null >$root/cgroup.subtree_control || true
	elif [ -e /sys/fs/cgroup/memory/memory.limit_in_bytes ]; then
		root=/sys/fs/cgroup/memory
	else
		say "no memory limit: no memory controller under /sys/fs/cgroup"
		return 1
	fi
	if ! mkdir "$root/$name"; then
		say "no memory limit: $root cannot be written to (a container without its own?)"
		return 1
	fi
	if [ -e "$root/$name/memory.max" ]; then
		echo 0 2>/dev/null >"$root/$name/memory.swap.max" || true
		echo "$bytes" >"$root/$name/memory.max"
	elif [ -e "$root/$name/memory.limit_in_bytes" ]; then
		echo "$bytes" >"$root/$name/memory.limit_in_bytes"
		echo "$bytes" 2>/dev/null >"$root/$name/memory.memsw.limit_in_bytes" ||
			true
	else
		say "no memory limit: the memory controller is not delegated to $root"
		rmdir "$root/$name"
		return 1
	fi
	limit_group=$root/$name
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

limit_end() {
	local i
	[ -n "$limit_group" ] || return 0
	for ((i = 0; i < 50; i++)); do
		rmdir "$limit_group" 2>/dev/null && break
		sleep 0.2
	done
	limit_group=
}

forget_cached() {
	sync -f "$1" 2>/dev/null || sync
	find "$@" -type f -exec dd if={} iflag=nocache count=0 status=none \;
}

# Shared by test/all.sh, bench/demo.sh and the benchmarks: packages, a build
# in a scratch copy, and a private server run by an unprivileged user.
#
# Works as root or as a user with sudo.  Nothing outside the scratch directory
# is touched but Debian packages and the installed extension.

set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

as_root() {
	if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

say() { printf '%s\n' "$*" >&2; }

# PostgreSQL: the highest version installed with its server headers, else the
# one Debian ships.
find_pg_config() {
	if [ -n "${PG_CONFIG:-}" ]; then echo "$PG_CONFIG"; return; fi
	ls /usr/lib/postgresql/*/bin/pg_config 2>/dev/null | sort -V | tail -n 1
}

# install_packages PACKAGE...: what is missing of them, from Debian.
install_packages() {
	local missing=() p
	for p in "$@"; do
		dpkg-query -W -f='${Status}' "$p" 2>/dev/null |
			grep -q 'ok installed' || missing+=("$p")
	done
	[ ${#missing[@]} = 0 ] && return
	say "installing from Debian: ${missing[*]}"
	as_root apt-get update -qq >&2
	# No cluster of its own: only private servers are started here.
	as_root mkdir -p /etc/postgresql-common
	if [ ! -e /etc/postgresql-common/createcluster.conf ]; then
		echo "create_main_cluster = false" |
			as_root tee /etc/postgresql-common/createcluster.conf >/dev/null
	fi
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
		--no-install-recommends "${missing[@]}" >/dev/null
}

need_server() {
	install_packages build-essential postgresql postgresql-server-dev-all \
		liburing-dev libxxhash-dev libopenblas0-pthread perl
	PG_CONFIG=$(find_pg_config)
	[ -x "$PG_CONFIG" ] || { say "no pg_config found"; exit 1; }
	bindir=$("$PG_CONFIG" --bindir)
	export PG_CONFIG bindir
	export PATH="$bindir:$PATH"
}

need_tests() {
	need_server
	install_packages libcmocka-dev libipc-run-perl libtest-simple-perl \
		pkg-config libhdf5-dev
}

# The user that runs servers: ourselves, or when we are root NAVIS_SERVER_USER,
# by default postgres.  (Another one if servers of postgres that run already
# leave too little of its locked memory for io_uring.)
server_user() {
	if [ "$(id -u)" = 0 ]; then
		echo "${NAVIS_SERVER_USER:-postgres}"
	else
		id -un
	fi
}

# io_uring counts its memory against RLIMIT_MEMLOCK of all processes of the
# user, other servers included: as root we lift it for ours.
as_server() {
	if [ "$(id -u)" = 0 ]; then
		(
			cd /tmp
			ulimit -l unlimited 2>/dev/null || true
			runuser -u "$(server_user)" -- env "PATH=$PATH" "$@"
		)
	else
		"$@"
	fi
}

# scratch_dir NAME: a directory the server user may write; removed by
# the caller.
scratch_dir() {
	local dir
	dir=$(mktemp -d "${TMPDIR:-/tmp}/navis-$1-XXXXXX")
	[ "$(id -u)" = 0 ] && chown "$(server_user)" "$dir"
	chmod 755 "$dir"
	echo "$dir"
}

# build_in DIR [make arguments]: copies the sources there, builds, installs.
build_in() {
	local dir=$1
	shift
	mkdir -p "$dir/src"
	(cd "$top" && tar cf - --exclude=./.git --exclude=./build \
		--exclude='*.o' --exclude='*.so' --exclude='*.bc' .) |
		tar xf - -C "$dir/src"
	make -C "$dir/src" -s -j"$(nproc)" PG_CONFIG="$PG_CONFIG" "$@"
	as_root make -C "$dir/src" -s install PG_CONFIG="$PG_CONFIG" "$@" >/dev/null
	[ "$(id -u)" = 0 ] && chown -R "$(server_user)" "$dir/src"
	return 0
}

# start_server DIR [setting...]: initdb and start in DIR; sets PGHOST, PGPORT,
# PGUSER, PGDATABASE.
start_server() {
	local dir=$1 setting
	shift
	as_server initdb -D "$dir/data" -U postgres -A trust -E UTF8 \
		--no-locale >"$dir/initdb.log"
	{
		echo "listen_addresses = ''"
		echo "unix_socket_directories = '$dir'"
		echo "port = 5432"
		echo "shared_preload_libraries = 'navis'"
		for setting in "$@"; do echo "$setting"; done
	} >"$dir/extra.conf"
	as_server sh -c "cat '$dir/extra.conf' >>'$dir/data/postgresql.conf'"
	export PGHOST=$dir PGPORT=5432 PGUSER=postgres PGDATABASE=postgres
	as_server pg_ctl -D "$dir/data" -l "$dir/server.log" -w -s start ||
		{ tail -n 30 "$dir/server.log" >&2; return 1; }
}

stop_server() {
	as_server pg_ctl -D "$1/data" -m fast -w -s stop 2>/dev/null || true
}

restart_server() {
	as_server pg_ctl -D "$1/data" -l "$1/server.log" -m fast -w -s restart ||
		{ as_root tail -n 30 "$1/server.log" >&2; return 1; }
}

# navis: nearest-neighbour index on SSD for PostgreSQL
#
#   make, make install           build and install (PG_CONFIG=... to choose)
#   make installcheck            pg_regress and isolation tests against a
#                                running server that preloads navis
#   make check-engine            engine unit tests, no server needed
#   make demo                    bench/demo.sh
#   bash test/all.sh             everything, on a private server

EXTENSION = navis
MODULE_big = navis
DATA = $(wildcard sql/navis--*.sql)
OBJS = $(patsubst %.c,%.o,$(wildcard src/engine/*.c src/worker/*.c src/am/*.c))

PG_CPPFLAGS = -I$(CURDIR)/include -I$(CURDIR)/src/engine -I$(CURDIR)/src/worker -I$(CURDIR)/src/am -D_GNU_SOURCE
PG_CFLAGS = -std=gnu11 -pthread -Wno-declaration-after-statement
SHLIB_LINK = -luring -lxxhash -ldl -lm -lpthread

REGRESS = $(patsubst sql/%.sql,%,$(filter-out $(DATA),$(wildcard sql/*.sql)))
REGRESS_OPTS = --inputdir=. --load-extension=navis
ISOLATION = $(patsubst test/isolation/specs/%.spec,%,$(wildcard test/isolation/specs/*.spec))
ISOLATION_OPTS = --inputdir=test/isolation --load-extension=navis
# TAP tests start servers of their own, as an unprivileged user: test/all.sh.

EXTRA_CLEAN = build results output_iso

# JIT inlining gains nothing here, and bitcode would need clang to build.
override with_llvm = no

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

# Engine headers are plain dependencies: a changed interface rebuilds all.
$(OBJS): $(wildcard include/navis/*.h src/engine/*.h src/worker/*.h src/am/*.h)

.PHONY: check-engine demo
check-engine:
	$(MAKE) -C test/unit check

demo:
	bash bench/demo.sh

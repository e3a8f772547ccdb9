#!/usr/bin/env python3
"""Plots and the Markdown report of a run of run.sh.

    plot.py DIR

DIR holds facts.jsonl, engine.jsonl (navis_bench, navis_layout), driver.jsonl
(sql_bench) and sql.jsonl (run.sh), and peers.jsonl if somebody has written
down what other engines did on the same files (bench/README.md), one JSON object
a line; what a run did not do is left out.  Writes
report.md and PNG files beside them.  Needs matplotlib.
"""
import json
import os
import sys
from collections import defaultdict

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import MaxNLocator  # noqa: E402

NAMES = {"navis": "navis", "hnsw": "pgvector HNSW",
         "ivfflat": "pgvector IVFFlat"}
SITUATIONS = {
    "resident": "in memory",
    "inserted": "after one batch of inserts",
    "deleted": "after as many deletes and VACUUM",
    "limited": "memory limited",
}


def read(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def number(value, digits=1):
    if value is None:
        return "-"
    return "{:,.{}f}".format(value, digits)


def latency(line, prefix=""):
    """Mean, P50 and P99 of a line of JSON."""
    return " / ".join(number(line.get(prefix + name + "_ms"), 2)
                      for name in ("mean", "p50", "p99"))


def mean(values):
    values = [v for v in values if v is not None]
    return sum(values) / len(values) if values else None


def steps(axes, histograms, label):
    """Sums histograms of latencies, by powers of 2^(1/4) from 10 us on."""
    counts = [sum(column) for column in zip(*histograms)]
    total = sum(counts)
    if total > 0:
        # From the last empty one before all to the first behind.
        some = [i for i, n in enumerate(counts) if n > 0]
        shown = range(max(some[0] - 1, 0), min(some[-1] + 2, len(counts)))
        axes.step([0.01 * 2 ** (i / 4) for i in shown],
                  [100 * counts[i] / total for i in shown], where="post",
                  label=label)


def dress(axes, x, y, bottom=None, legend=8):
    """What all plots have; batches are whole numbers."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    if bottom is not None:
        axes.set_ylim(bottom=bottom)
    if x == "batch":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=legend)


class Report:
    def __init__(self, directory):
        self.directory = directory
        self.facts = read(os.path.join(directory, "facts.jsonl"))
        self.engine = read(os.path.join(directory, "engine.jsonl"))
        self.sql = read(os.path.join(directory, "sql.jsonl"))
        self.driver = read(os.path.join(directory, "driver.jsonl"))
        self.peers = read(os.path.join(directory, "peers.jsonl"))
        self.lines = []

    # --- what was measured ---

    def of(self, kind, label):
        return [x for x in self.engine
                if x["kind"] == kind and x.get("label") == label]

    def fact(self, name):
        return next((f["value"] for f in self.facts if f["name"] == name), None)

    def sql_value(self, method, situation, name, size=None):
        """Mean over what there is (rounds)."""
        return mean(x["value"] for x in self.sql
                    if x["method"] == method and x["situation"] == situation
                    and x["name"] == name and x["L"] == size)

    def sql_lists(self, method, situation):
        return sorted({x["L"] for x in self.sql if x["method"] == method
                       and x["situation"] == situation and x["L"] is not None})

    def methods(self):
        return [m for m in NAMES if any(x["method"] == m for x in self.sql)]

    # --- Markdown ---

    def text(self, *lines):
        self.lines.extend(lines)

    def table(self, head, rows):
        if not rows:
            return
        self.text("", "| " + " | ".join(head) + " |",
                  "|" + "---|" + "---:|" * (len(head) - 1))
        for row in rows:
            self.text("| " + " | ".join(str(cell) for cell in row) + " |")
        self.text("")

    def picture(self, figure, name, title):
        figure.tight_layout()
        figure.savefig(os.path.join(self.directory, name + ".png"), dpi=110)
        plt.close(figure)
        self.text("![{}]({}.png)".format(title, name), "")

    def write(self):
        with open(os.path.join(self.directory, "report.md"), "w",
                  encoding="utf-8") as f:
            f.write("\n".join(self.lines) + "\n")

    # --- sections ---

    def head(self):
        self.text("# Evaluation, {}, {}".format(
            self.fact("size"), self.fact("date")), "",
            "Made by `bench/run.sh`; definitions are in `bench/README.md`, all "
            "commands and their output in `log.txt`, the figures in `*.jsonl`.",
            "")
        self.table(["", ""], [(f["name"], f["value"]) for f in self.facts
                              if f["name"] not in ("size", "date")])
        self.text("The parts are not to be compared with each other: the engine "
                  "alone and navis in SQL have other numbers of rows, threads "
                  "and caches (above). The engine's cache is the reference's "
                  "share, a tenth of the vectors, and its searches and "
                  "insertions keep going at once; in SQL two clients at most "
                  "ask, and the server has its own cache of pages "
                  "(`navis.cache_size`) and buffers.", "")

    def reference_table(self):
        rows = []
        for label, name in (("insert", "insertion beside searches"),
                            ("insert-limited", "the same, memory limited"),
                            ("insert-only", "insertion only"),
                            ("window", "sliding window (replaced)"),
                            ("window-consolidated",
                             "the same, consolidated after each batch")):
            for x in self.engine:
                if x["kind"] in ("insert_run", "replace_run") and \
                        x.get("label") == label:
                    rows.append((name, number(x["rate"], 0),
                                 latency(x, "insert_"),
                                 number(x["qps"], 0), latency(x),
                                 number(x["recall"], 4),
                                 number(x["peak_rss"] / 1e6)))
        for x in self.peers:
            rows.append((x["name"], number(x.get("rate"), 0),
                         latency(x, "insert_"), number(x.get("qps"), 0),
                         latency(x), number(x.get("recall"), 4),
                         number(x["peak_rss"] / 1e6 if "peak_rss" in x
                                else None)))
        if not rows:
            return
        self.text("## Engine alone: the reference's table", "",
                  "Rows by total batch time; searches: averages of the passes "
                  "beside the batches; recall: average of the passes after "
                  "them, each against the rows that were live then.")
        self.table(["engine", "vectors/s", "insertion mean / P50 / P99 ms",
                    "search QPS", "search mean / P50 / P99 ms", "recall@10",
                    "peak RSS MB"], rows)

    def curves(self):
        figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
        rows = []
        for label, name in (("search", "no limit"),
                            ("search-limited", "memory limited")):
            points = self.of("search", label)
            if not points:
                continue
            recalls = [x["recall"] for x in points]
            left.plot(recalls, [x["qps"] for x in points], marker="o",
                      label=name)
            line, = right.plot(recalls, [x["p99_ms"] for x in points],
                               marker="o", label="P99, " + name)
            right.plot(recalls, [x["mean_ms"] for x in points], marker=".",
                       linestyle="--", color=line.get_color(),
                       label="mean, " + name)
            for x in points:
                rows.append((name, x["L"], number(x["recall"], 4),
                             number(x["qps"], 0), number(x["mean_ms"], 2),
                             number(x["p50_ms"], 2), number(x["p99_ms"], 2),
                             number(x["vectors"]), number(x["edge_pages"]),
                             number(x["edge_reads"]),
                             number(x["bytes"] / 1024)))
        if not rows:
            plt.close(figure)
            return
        self.text("## Engine alone: search", "")
        for axes, label in ((left, "QPS"), (right, "latency, ms")):
            dress(axes, "recall@10", label, bottom=0)
        self.table(["memory", "L", "recall@10", "QPS", "mean ms", "P50", "P99",
                    "vector loads", "edge pages", "of these read",
                    "KiB read a query"], rows)
        self.picture(figure, "search", "recall against QPS and latency")

    def batches(self):
        labels = [l for l in ("insert", "window", "window-consolidated",
                              "insert-limited", "insert-only")
                  if self.of("batch", l)]
        if not labels:
            return
        self.text("## Engine alone: over time and by batch", "")
        rows = []
        for label in labels:
            for b in self.of("batch", label):
                after = [x for x in self.of("after", label)
                         if x["batch"] == b["batch"]]
                rows.append((label, b["batch"], number(b["rate"], 0),
                             number(b["insert_ms"], 2),
                             number(b["insert_p50_ms"], 2),
                             number(b["insert_p99_ms"], 2),
                             number(b["insert_loads"]),
                             number(b["w_insert"], 0),
                             number(b["insert_pages"]),
                             number(b["cache_hit_rate"] * 100),
                             number(self.beside(label, b["batch"], "qps"), 0),
                             number(after[0]["recall"], 4) if after else "-",
                             number(after[0]["w_search"], 0) if after else "-",
                             number(after[0]["edge_pages"]) if after else "-",
                             number(after[0]["bytes"] / 1024) if after
                             else "-", number(b["rss"] / 1e6)))
        self.table(["run", "batch", "vectors/s", "ms an insertion", "P50",
                    "P99",
                    "vector loads a seek", "w_insert", "edge pages a seek",
                    "cache hits %", "QPS beside", "recall@10 after",
                    "w_search", "edge pages a query after", "KiB read a query",
                    "RSS MB"], rows)
        self.over_time(labels)
        self.histogram(labels)

    def beside(self, label, batch, name):
        return mean(x[name] for x in self.of("beside", label)
                    if x["batch"] == batch)

    def over_time(self, labels):
        figure, axes = plt.subplots(3, 2, figsize=(10, 10))
        for label in labels:
            batches = self.of("batch", label)
            after = self.of("after", label)
            at = [x["batch"] for x in batches]
            line, = axes[0][0].plot(at, [x["rate"] for x in batches],
                                    marker="o", label=label)
            color = line.get_color()
            self.line(axes[0][1], self.timed("progress", label), "at", "rate",
                      label, color)
            qps = [(n, self.beside(label, n, "qps")) for n in at]
            qps = [p for p in qps if p[1] is not None]
            if qps:
                axes[1][0].plot(*zip(*qps), marker="o", label=label,
                                color=color)
            self.line(axes[1][1], self.timed("beside", label), "at", "qps",
                      label, color)
            self.line(axes[2][0], after, "batch", "recall", label, color)
            axes[2][1].plot(at, [x["rss"] / 1e6 for x in batches], marker="o",
                            label=label, color=color)
        for a, x, y in ((axes[0][0], "batch", "vectors inserted/s"),
                        (axes[0][1], "seconds since the first batch began",
                         "vectors/s since the batch began"),
                        (axes[1][0], "batch", "QPS beside, mean"),
                        (axes[1][1], "seconds since the first batch began",
                         "QPS beside, of a pass"),
                        (axes[2][0], "batch", "recall@10 after"),
                        (axes[2][1], "batch", "RSS, MB")):
            dress(a, x, y, bottom=None if "recall" in y else 0)
        self.picture(figure, "batches",
                     "insertion and searches by batch and over time")

    def timed(self, kind, label):
        """With the time since the first batch began."""
        began = self.of("batch", label)[0]["at"]
        return [dict(x, at=x["at"] - began) for x in self.of(kind, label)]

    def line(self, axes, points, x, y, label, color):
        points = [p for p in points if p[y] is not None]
        if points:
            axes.plot([p[x] for p in points], [p[y] for p in points],
                      marker=".", label=label, color=color)

    def resources(self):
        """Bytes read a query, and memory."""
        figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
        for label, name in (("search", "search, no limit"),
                            ("search-limited", "search, memory limited")):
            points = self.of("search", label)
            if points:
                left.plot([x["L"] for x in points],
                          [x["bytes"] / 1024 for x in points], marker="o",
                          label=name)
        sql = [x for x in self.driver if x["kind"] == "sql_search"
               and x["clients"] == 1 and "bytes" in x]
        for situation in ("resident", "limited"):
            points = [x for x in sql if x["label"] == "navis " + situation]
            if points:
                left.plot([x["L"] for x in points],
                          [x["bytes"] / 1024 for x in points], marker="s",
                          linestyle="--",
                          label="navis in SQL, " + SITUATIONS[situation])
        rows, runs = [], []
        for label in ("search", "search-limited", "insert", "insert-limited",
                      "insert-only", "window", "window-consolidated"):
            memory = self.of("memory", label)
            end = [x for x in self.engine
                   if x["kind"] in ("insert_run", "replace_run")
                   and x.get("label") == label]
            if memory:
                peak = max(x["peak_rss"] for x in memory + end)
                runs.append((label, memory[0]["held"], memory[0]["cache"], peak))
                rows.append((label,
                             number(memory[0]["held"] / memory[0]["vertices"]),
                             number(memory[0]["held"] / 1e6),
                             number(memory[0]["cache"] / 1e6),
                             number(memory[0]["rss"] / 1e6),
                             number(peak / 1e6)))
        if not rows:
            plt.close(figure)
            return
        self.text("## Engine alone: memory and bytes read", "",
                  "Held: codes, map, elements and entrance graph when the "
                  "index has been opened; the cache comes on top, the rest is "
                  "buffers of threads, edge pages not written yet and the "
                  "program. Bytes are what the engine reads of its files, "
                  "past the operating system's cache where the file system "
                  "can (O_DIRECT).")
        self.table(["run", "bytes a vector held", "held MB", "cache MB",
                    "RSS when opened MB", "peak RSS MB"], rows)
        at = range(len(runs))
        for i, name in ((3, "peak RSS"), (2, "cache"), (1, "held")):
            right.barh([y + 0.27 * (i - 2) for y in at],
                       [r[i] / 1e6 for r in runs], 0.25, label=name)
        right.set_yticks(list(at), [r[0] for r in runs], fontsize=8)
        right.invert_yaxis()
        dress(left, "L, navis.search_list_size", "KiB read a query", bottom=0)
        right.set_xlabel("MB")
        right.grid(alpha=0.3, axis="x")
        right.legend(fontsize=8)
        self.picture(figure, "resources", "bytes read a query, and memory")

    def histogram(self, labels):
        figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.5))
        for label in ["search"] + labels:
            points = [x for x in self.of("beside", label)] if label != "search" \
                else [x for x in self.of("search", label) if x["L"] == 40]
            steps(left, [x["latency_buckets"] for x in points], label)
            steps(right, [x["insert_buckets"]
                          for x in self.of("batch", label)], label)
        for axes, what in ((left, "a search (L = 40)"), (right, "an insertion")):
            axes.set_xscale("log")
            dress(axes, "latency of %s, ms" % what, "%", bottom=0)
        self.picture(figure, "latency", "histograms of latencies")

    def sql_section(self):
        methods = self.methods()
        if not methods:
            return
        self.text("## SQL, beside peers", "",
                  "Throughput: one batch of single-row INSERTs (under the limit "
                  "a fifth of one), to the moment when the last row is in the "
                  "graph. Beside: two clients "
                  "search with list size or ef_search 100 (16 probes) while one "
                  "session inserts at a fixed rate. An INSERT's latency is the "
                  "client's: alone of statements in one transaction, beside "
                  "of transactions of one row; what navis links in the "
                  "background is not in it.")
        rows = []
        for situation in ("resident", "limited"):
            for m in methods:
                v = lambda name, size=None: self.sql_value(m, situation, name, size)
                if v("recall_middle") is None:
                    continue
                rows.append((NAMES[m], SITUATIONS[situation],
                             number(v("insert_rate"), 0),
                             " / ".join(number(v("insert_" + n), 2)
                                        for n in ("mean", "p50", "p99")),
                             number(v("rate_beside"), 0),
                             " / ".join(number(v("insert_" + n + "_beside"), 2)
                                        for n in ("mean", "p50", "p99")),
                             number(v("qps_middle"), 0),
                             number(v("qps_beside"), 0),
                             "{} / {}".format(number(v("p50_beside"), 2),
                                              number(v("p99_beside"), 2)),
                             number(v("recall_middle"), 4)))
        self.table(["method", "memory", "vectors/s alone",
                    "an INSERT, mean / P50 / P99 ms", "vectors/s beside",
                    "an INSERT beside", "QPS alone", "QPS beside", "P50 / P99 ms beside",
                    "recall@10"], rows)
        self.text("", "VACUUM: navis takes the rows out of its list; vertices "
                  "without rows stay in the graph until they are more than a "
                  "tenth (a batch is less) and are then "
                  "taken out together. HNSW takes them out in every VACUUM.")
        rows = []
        for m in methods:
            v = lambda s, name: self.sql_value(m, s, name)
            rows.append((NAMES[m], number(v("resident", "build_seconds")),
                         number((v("resident", "table_bytes") or 0) / 1e6, 0),
                         number((v("resident", "index_bytes") or 0) / 1e6, 0),
                         number(v("deleted", "seconds"), 2),
                         number(v("deleted", "vacuum_seconds"), 2)))
        self.table(["method", "build s", "table MB", "index MB",
                    "DELETE of a batch s", "VACUUM s"], rows)
        self.sql_curves(methods)

    def sql_curves(self, methods):
        figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
        rows = []
        for m in methods:
            for s in SITUATIONS:
                lists = [l for l in self.sql_lists(m, s)
                         if self.sql_value(m, s, "recall", l) is not None]
                v = lambda name, l: self.sql_value(m, s, name, l)
                if s in ("resident", "limited") and lists:
                    for axes, name in ((left, "qps"), (right, "p99_ms")):
                        axes.plot([v("recall", l) for l in lists],
                                  [v(name, l) for l in lists], marker="o",
                                  linestyle="-" if s == "resident" else "--",
                                  label=NAMES[m] + ", " + SITUATIONS[s])
                for l in lists:
                    rows.append((NAMES[m], SITUATIONS[s], l,
                                 number(v("recall", l), 4),
                                 number(v("qps", l), 0),
                                 number(v("p50_ms", l), 2),
                                 number(v("p99_ms", l), 2)))
        for axes, label in ((left, "QPS, two clients"),
                            (right, "P99 of one client, ms")):
            axes.set_yscale("log")
            dress(axes, "recall@10", label, legend=7)
        self.table(["method", "situation", "list size, ef_search or probes",
                    "recall@10",
                    "QPS, two clients", "P50 ms, one client", "P99 ms"], rows)
        self.picture(figure, "sql", "SQL: recall against QPS and P99")

    # --- ablations ---

    def ablation(self, title, note, labels, columns, name, y, ylabel):
        """Search-only ablations: labels are (label, shown name)."""
        rows = []
        figure, axes = plt.subplots(figsize=(6, 3.5))
        for label, shown in labels:
            points = self.of("search", label)
            if not points:
                continue
            axes.plot([x["L"] for x in points], [x[y] for x in points],
                      marker="o", label=shown)
            for x in points:
                rows.append([shown, x["L"]] +
                            [number(x[key], digits)
                             for _, key, digits in columns])
        if not rows:
            plt.close(figure)
            return
        dress(axes, "L", ylabel, bottom=0)
        self.text("### " + title, "", note)
        self.table(["variant", "L"] + [c[0] for c in columns], rows)
        self.picture(figure, name, title)

    def search_ablations(self):
        pages = [("edge pages", "edge_pages", 1), ("hops", "hops", 1),
                 ("explored", "explored", 1), ("recall@10", "recall", 4),
                 ("QPS", "qps", 0)]
        loads = [("vector loads", "vectors", 1),
                 ("rerank batches", "rerank_batches", 2),
                 ("w", "w_search", 0), ("recall@10", "recall", 4),
                 ("QPS", "qps", 0), ("P99 ms", "p99_ms", 2)]
        self.ablation(
            "Placement, entrance graph, whole pages",
            "The same graph without a cache: every page looked at is read. "
            "Random placement; no entrance graph (from the medoid); of a page "
            "only the list that was asked for.",
            [("placement-index", "all of it"),
             ("placement-random", "random placement"),
             ("entrance-medoid", "no entrance graph"),
             ("page-single", "single lists")],
            pages, "ablation_placement", "edge_pages", "edge pages a query")
        self.ablation(
            "Rerank: CASR, everything, fixed stages",
            "CASR stops when the top 10 have not changed for w loads, w being "
            "the percentile (100 unless said) of the warm-up. Fixed stages: "
            "ceil(w / 2) loads each, until two in a row changed nothing.",
            [("casr---window", "CASR"), ("casr---percentile-99", "CASR, P99"),
             ("casr---percentile-90", "CASR, P90"),
             ("casr---fixed-stages", "fixed stages"),
             ("casr---load-all", "everything explored")],
            loads, "ablation_casr", "vectors", "vector loads a query")
        self.ablation(
            "Beam width", "Without a cache; 4 is the reference's.",
            [("beam-%d" % w, "W = %d" % w) for w in (1, 2, 4, 8, 16)],
            pages + [("P50 ms", "p50_ms", 2), ("I/O us", "io_us", 0)],
            "ablation_beam", "p50_ms", "P50, ms")

    def cache_ablation(self):
        rows = []
        figure, (axes, sizes) = plt.subplots(1, 2, figsize=(10, 3.5))
        for label, shown in (("cache-navis", "navis"),
                             ("cache-reference", "the reference's"),
                             ("cache-lru", "plain LRU")):
            batches = self.of("batch", label)
            after = self.of("after", label)
            if not batches:
                continue
            axes.plot([x["batch"] for x in batches],
                      [100 * x["cache_hit_rate"] for x in batches], marker="o",
                      label=shown)
            for b, a in zip(batches, after):
                rows.append((shown, b["batch"],
                             number(100 * b["cache_hit_rate"]),
                             number(b["insert_reads"]), number(b["rate"], 0),
                             number(a["edge_reads"]), number(a["qps"], 0)))
        if not rows:
            plt.close(figure)
            return
        dress(axes, "batch", "cache hits, %")
        self.text("### Cache policy", "",
                  "Insertion beside searches with a cache of a quarter of the "
                  "edge file; hits of both together. navis keeps what was asked for "
                  "most, the longer ago the less; the reference's policy freezes "
                  "what is hit twice by insertion or 16 times by search.")
        self.table(["policy", "batch", "cache hits %", "page reads a seek",
                    "vectors/s", "page reads a query after", "QPS after"],
                   rows)
        self.cache_sizes(sizes)
        self.picture(figure, "ablation_cache", "cache policy")

    def cache_sizes(self, axes):
        """The lookups of one run through caches of other sizes."""
        points = [x for x in self.engine if x["kind"] == "cache_policy"]
        shown = {"navis": "navis", "reference": "the reference's",
                 "lru": "plain LRU", "best": "best possible"}
        if not points:
            return
        for policy, name in shown.items():
            line = [x for x in points if x["policy"] == policy]
            axes.plot([x["share"] for x in line], [x["hits"] for x in line],
                      marker="o", label=name)
        dress(axes, "cache, % of the edge file", "hits, % (replayed)")
        self.text("The lookups of the first of these runs, replayed by "
                  "`navis_cache`; the best possible policy knows what will be "
                  "asked for.")
        self.table(["policy", "cache, % of the edge file", "hits %",
                    "of search", "of insertion"],
                   [(shown[x["policy"]], x["share"], number(x["hits"]),
                     number(x["search_hits"]), number(x["insert_hits"]))
                    for x in points])

    def drift_ablation(self):
        rows = []
        figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.5))
        for label, shown in (("drift---dynamic", "dynamic"),
                             ("drift---static-entrance", "static")):
            after = self.of("after", label)
            batches = self.of("batch", label)
            if not after:
                continue
            left.plot([x["batch"] for x in after],
                      [x["recall"] for x in after], marker="o", label=shown)
            right.plot([x["batch"] for x in after],
                       [x["edge_pages"] for x in after], marker="o",
                       label=shown)
            for b, a in zip(batches, after):
                rows.append((shown, b["batch"], number(b["entrance_live"], 0),
                             number(a["recall"], 4), number(a["hops"], 2),
                             number(a["edge_pages"]), number(a["explored"]),
                             number(b["insert_pages"]), number(b["rate"], 0)))
        if not rows:
            plt.close(figure)
            return
        for axes, label in ((left, "recall@10"), (right, "edge pages a query")):
            dress(axes, "batch", label)
        self.text("### Entrance graph under drift", "",
                  "All rows inserted come from regions that the base lacks, "
                  "queries from everywhere; L = 20. Each batch adds a tenth of "
                  "the base.")
        self.table(["entrance graph", "batch", "members", "recall@10", "hops",
                    "edge pages", "explored", "edge pages a seek",
                    "vectors/s"], rows)
        self.picture(figure, "ablation_drift", "entrance graph under drift")

    def layouts(self):
        points = [x for x in self.engine if x["kind"] == "layout"]
        if not points:
            return
        self.text("### Layout and slots (counted, not measured)", "",
                  "What other layouts would read for the same traversals "
                  "through the same cache (`navis_layout.c`); cache in per "
                  "cent of the packed file. Packed records bring their vector "
                  "along, the others read each vector that the rerank loads. "
                  "Traversals explore single lists here, so that they are the "
                  "same for all.")
        rows = [(x["layout"], x["operation"], "%d %%" % x["share"],
                 x["policy"], number(x["disk_bytes"] / 1e6),
                 number(x["pages"]), number(100 * x["hit_rate"]),
                 number(x["reads"]), number(x["vector_reads"]),
                 number(x["kbytes"])) for x in points]
        self.table(["layout", "operation", "cache", "policy", "MB on disk",
                    "pages", "hits %", "page reads", "vector reads",
                    "KiB read"], rows)
        figure, panels = plt.subplots(1, 2, figsize=(10, 4))
        for axes, operation in zip(panels, ("search", "seek")):
            lines = defaultdict(list)
            for x in points:
                if x["operation"] == operation and x["policy"] == "NAVIS":
                    lines[x["layout"]].append((x["share"], x["kbytes"]))
            for layout, line in lines.items():
                axes.plot([p[0] for p in line], [p[1] for p in line],
                          marker="o", label=layout)
            dress(axes, "cache, % of the packed file",
                  "KiB read a " + operation, bottom=0)
        self.picture(figure, "ablation_layout", "bytes read by layout, counted")

    def build(self):
        self.head()
        self.reference_table()
        self.sql_section()
        self.curves()
        self.batches()
        self.resources()
        if any(str(x.get("label", "")).startswith(("placement", "casr", "drift"))
               for x in self.engine):
            self.text("## Ablations", "")
        self.search_ablations()
        self.cache_ablation()
        self.drift_ablation()
        self.layouts()
        self.write()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    Report(sys.argv[1]).build()

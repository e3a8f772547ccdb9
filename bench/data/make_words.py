#!/usr/bin/env python3
"""Make words.tsv.gz from word vectors in .fbin layout.

    make_words.py VECTORS.fbin WORDS.txt [OUTPUT] [--rows 20000]

VECTORS.fbin: uint32 rows, uint32 dimensions, then rows x dimensions float32,
row-major, little-endian.  WORDS.txt: the word of each row, one a line, most
frequent first.  The first --rows of them are written as input for COPY in
text format, a row a line:

    word <tab> {number,number,...}

Numbers have five significant digits.  The program says whether reading them
as float32 gives back exactly the vectors they were made from; for GloVe it
does, because GloVe is published with five digits.  Needs nothing but Python.
"""
import argparse
import array
import gzip
import struct
import sys

DIGITS = 5


def read_vectors(path, rows):
    """The first rows vectors of an .fbin file and their dimensions."""
    with open(path, "rb") as f:
        n, dim = struct.unpack("<II", f.read(8))
        rows = min(rows, n)
        values = array.array("f")
        values.frombytes(f.read(rows * dim * values.itemsize))
    if sys.byteorder == "big":
        values.byteswap()
    if len(values) != rows * dim:
        sys.exit("%s: %d numbers, expected %d" % (path, len(values),
                                                  rows * dim))
    return values, dim


def number(value):
    """Shortest common spelling: 0.25 is .25."""
    text = "%.*g" % (DIGITS, value)
    sign = "-" if text.startswith("-") else ""
    text = text[len(sign):]
    return sign + (text[1:] if text.startswith("0.") else text)


def escape(word):
    """What COPY's text format asks for."""
    return (word.replace("\\", "\\\\").replace("\t", "\\t")
            .replace("\n", "\\n").replace("\r", "\\r"))


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("vectors")
    p.add_argument("words")
    p.add_argument("output", nargs="?", default="words.tsv.gz")
    p.add_argument("--rows", type=int, default=20000)
    a = p.parse_args()

    values, dim = read_vectors(a.vectors, a.rows)
    with open(a.words, encoding="utf-8", newline="\n") as f:
        words = f.read().split("\n")
    rows = len(values) // dim
    if len(words) < rows:
        sys.exit("%s: %d words, expected %d" % (a.words, len(words), rows))

    texts = [number(v) for v in values]
    changed = sum(x != y for x, y in
                  zip(array.array("f", map(float, texts)), values))
    lines = "".join("%s\t{%s}\n" % (escape(words[i]),
                                    ",".join(texts[i * dim:(i + 1) * dim]))
                    for i in range(rows))
    # No time and no name in the header: the same input gives the same file.
    with open(a.output, "wb") as raw:
        with gzip.GzipFile(filename="", mode="wb", fileobj=raw,
                           compresslevel=9, mtime=0) as f:
            f.write(lines.encode("utf-8"))
    print("%d words, %d dimensions, %d of %d numbers changed by rounding"
          % (rows, dim, changed, len(values)))


if __name__ == "__main__":
    main()

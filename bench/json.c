/*
 * json.c
 *		Lines of JSON; see json.h.
 */
#include "json.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"

struct bench_json
{
	FILE *file; /* NULL: nowhere */
	const char *label;
};

bench_json *
bench_json_open(const char *path)
{
	bench_json *j = bench_allocate(1, sizeof(*j));

	j->file = path != NULL ? fopen(path, "a") : NULL;
	if (path != NULL && j->file == NULL)
		bench_die(path, strerror(errno));
	return j;
}

void
bench_json_close(bench_json *j)
{
	if (j->file != NULL && fclose(j->file) != 0)
		bench_die("--json", strerror(errno));
	free(j);
}

void
bench_json_label(bench_json *j, const char *label)
{
	j->label = label;
}

static void
put_text(FILE *f, const char *text)
{
	fputc('"', f);
	for (; *text != '\0'; text++)
	{
		unsigned char c = (unsigned char) *text;

		if (c == '"' || c == '\\')
			fprintf(f, "\\%c", c);
		else if (c < 0x20)
			fprintf(f, "\\u%04x", c);
		else
			fputc(c, f);
	}
	fputc('"', f);
}

void
bench_json_begin(bench_json *j, const char *kind)
{
	if (j->file == NULL)
		return;
	fprintf(j->file, "{\"kind\": ");
	put_text(j->file, kind);
	if (j->label != NULL)
		bench_json_text(j, "label", j->label);
}

void
bench_json_number(bench_json *j, const char *name, double value)
{
	if (j->file == NULL)
		return;
	if (isfinite(value))
		fprintf(j->file, ", \"%s\": %.9g", name, value);
	else
		fprintf(j->file, ", \"%s\": null", name);
}

void
bench_json_text(bench_json *j, const char *name, const char *value)
{
	if (j->file == NULL)
		return;
	fprintf(j->file, ", \"%s\": ", name);
	put_text(j->file, value);
}

void
bench_json_counts(bench_json *j, const char *name, const uint32_t *counts,
				  uint32_t n)
{
	if (j->file == NULL)
		return;
	fprintf(j->file, ", \"%s\": [", name);
	for (uint32_t i = 0; i < n; i++)
		fprintf(j->file, "%s%u", i > 0 ? ", " : "", counts[i]);
	fprintf(j->file, "]");
}

void
bench_json_end(bench_json *j)
{
	if (j->file == NULL)
		return;
	fprintf(j->file, "}\n");
	fflush(j->file);
}

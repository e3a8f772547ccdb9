/*
 * arguments.c
 *		Command lines; see arguments.h.
 */
#include "arguments.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ARGUMENTS 64
#define HELP_COLUMN 30
#define HELP_WIDTH 80
#define GB 1e9
#define GIB 1073741824.0

void
bench_usage(const char *option, const char *detail)
{
	fprintf(stderr, "%s: %s: %s\n%s --help lists the options\n", bench_program,
			option, detail, bench_program);
	exit(2);
}

void
bench_require(const void *value, const char *option)
{
	if (value == NULL)
		bench_usage(option, "is missing");
}

void
bench_no_more(int first, int argc, char **argv)
{
	if (first < argc)
		bench_usage(argv[first], "is no option, and not expected");
}

/* --- Numbers --- */

uint64_t
bench_parse_count(const char *option, const char *text, uint64_t low,
				  uint64_t high)
{
	char *end, expected[96];
	unsigned long long value;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (end == text || *end != '\0' || text[0] == '-' || errno != 0 ||
		value < low || value > high)
	{
		snprintf(expected, sizeof(expected),
				 "\"%.20s\": a number from %llu to %llu expected", text,
				 (unsigned long long) low, (unsigned long long) high);
		bench_usage(option, expected);
	}
	return value;
}

double
bench_parse_real(const char *option, const char *text, double low, double high)
{
	char *end, expected[96];
	double value = strtod(text, &end);

	if (end == text || *end != '\0' || !(value >= low && value <= high))
	{
		snprintf(expected, sizeof(expected),
				 "\"%.20s\": a number from %g to %g expected", text, low, high);
		bench_usage(option, expected);
	}
	return value;
}

static bench_numbers
parse_numbers(const bench_argument *a, const char *text)
{
	bench_numbers list = {0};

	for (;;)
	{
		char *end;
		unsigned long value = strtoul(text, &end, 10);

		if (end == text || (*end != ',' && *end != '\0') || text[0] == '-' ||
			value < a->low || value > a->high || list.n == BENCH_MAX_NUMBERS)
		{
			char expected[96];

			snprintf(expected, sizeof(expected),
					 "at most %d numbers from %.10g to %.10g, separated by "
					 "commas, expected",
					 BENCH_MAX_NUMBERS, a->low, a->high);
			bench_usage(a->name, expected);
		}
		list.values[list.n++] = (uint32_t) value;
		if (*end == '\0')
			return list;
		text = end + 1;
	}
}

/* --- Values --- */

static void *
target(const bench_argument *a, void *options)
{
	return (char *) options + a->at;
}

void
bench_take_text(const bench_argument *a, const char *text, void *options)
{
	*(const char **) target(a, options) = text;
}

void
bench_take_count(const bench_argument *a, const char *text, void *options)
{
	*(uint32_t *) target(a, options) = (uint32_t) bench_parse_count(
		a->name, text, (uint64_t) a->low, (uint64_t) a->high);
}

void
bench_take_long(const bench_argument *a, const char *text, void *options)
{
	*(uint64_t *) target(a, options) =
		bench_parse_count(a->name, text, (uint64_t) a->low, (uint64_t) a->high);
}

void
bench_take_real(const bench_argument *a, const char *text, void *options)
{
	*(double *) target(a, options) =
		bench_parse_real(a->name, text, a->low, a->high);
}

void
bench_take_float(const bench_argument *a, const char *text, void *options)
{
	*(float *) target(a, options) =
		(float) bench_parse_real(a->name, text, a->low, a->high);
}

void
bench_take_gb(const bench_argument *a, const char *text, void *options)
{
	*(uint64_t *) target(a, options) =
		(uint64_t) (bench_parse_real(a->name, text, a->low, a->high) * GB);
}

void
bench_take_gib(const bench_argument *a, const char *text, void *options)
{
	*(uint64_t *) target(a, options) =
		(uint64_t) (bench_parse_real(a->name, text, a->low, a->high) * GIB);
}

void
bench_take_numbers(const bench_argument *a, const char *text, void *options)
{
	*(bench_numbers *) target(a, options) = parse_numbers(a, text);
}

void
bench_take_switch(const bench_argument *a, const char *text, void *options)
{
	(void) text;
	*(bool *) target(a, options) = true;
}

static bool
names(const char *list, const char *word)
{
	size_t len = strlen(word);

	for (const char *p = list; (p = strstr(p, word)) != NULL; p += len)
		if ((p == list || p[-1] == ' ') && (p[len] == ' ' || p[len] == '\0'))
			return len > 0;
	return false;
}

static bool
is_needed(const bench_argument *a, const char *mode)
{
	return a->needed != NULL && (strcmp(a->needed, ALWAYS) == 0 ||
								 (mode != NULL && names(a->needed, mode)));
}

/* --- Help --- */

/* The value as a number; NAN, which is in no range, when it is none. */
static double
number_of(const bench_argument *a, void *options)
{
	void *value = target(a, options);

	if (a->take == bench_take_count)
		return *(uint32_t *) value;
	if (a->take == bench_take_long)
		return (double) *(uint64_t *) value;
	if (a->take == bench_take_real)
		return *(double *) value;
	if (a->take == bench_take_float)
		return (double) *(float *) value;
	if (a->take == bench_take_gb)
		return (double) *(uint64_t *) value / GB;
	if (a->take == bench_take_gib)
		return (double) *(uint64_t *) value / GIB;
	return 0.0 / 0.0;
}

static void
add_default(const bench_argument *a, void *options, char *text, size_t room)
{
	size_t at = strlen(text);
	double number = number_of(a, options);

	if (a->take == bench_take_text)
	{
		const char *value = *(const char **) target(a, options);

		if (value != NULL)
			snprintf(text + at, room - at, " (default %s)", value);
	}
	else if (a->take == bench_take_numbers)
	{
		const bench_numbers *list = target(a, options);

		for (uint32_t i = 0; i < list->n && at < room; i++)
			at +=
				(size_t) snprintf(text + at, room - at, "%s%u",
								  i == 0 ? " (default " : ",", list->values[i]);
		if (list->n > 0 && at < room)
			snprintf(text + at, room - at, ")");
	}
	else if (number >= a->low && number <= a->high)
		snprintf(text + at, room - at, " (%.10g to %.10g, default %.6g)",
				 a->low, a->high, number);
	else if (a->value != NULL && a->high > a->low)
		snprintf(text + at, room - at, " (%.10g to %.10g)", a->low, a->high);
}

/* Breaks lines at spaces, behind the column of the names. */
static void
print_wrapped(const char *text)
{
	int room = HELP_WIDTH - HELP_COLUMN;

	while ((int) strlen(text) > room)
	{
		int len = room;

		while (len > 0 && text[len] != ' ')
			len--;
		if (len == 0)
			len = (int) strcspn(text, " ");
		printf("%.*s\n%*s", len, text, HELP_COLUMN, "");
		text += len + (text[len] == ' ');
	}
	printf("%s\n", text);
}

/* Where there are several. */
static void
add_modes(const bench_argument *a, char *text, size_t room)
{
	bool some = a->needed != NULL && strcmp(a->needed, ALWAYS) != 0;
	bool same = some && a->modes != NULL && strcmp(a->needed, a->modes) == 0;

	if (a->modes != NULL)
		snprintf(text + strlen(text), room - strlen(text), " [%s%s]", a->modes,
				 same ? "; needed" : "");
	if (some && !same)
		snprintf(text + strlen(text), room - strlen(text), " [needed: %s]",
				 a->needed);
}

/* mode: only its options, or NULL. */
static void
print_help(const bench_command *c, void *options, const char *mode)
{
	printf("usage: %s\n\n%s\n", c->usage, c->about);
	for (uint32_t i = 0; i < c->n; i++)
	{
		const bench_argument *a = &c->known[i];
		char text[1024];
		int used;

		if (mode != NULL && a->modes != NULL && !names(a->modes, mode))
			continue;
		if (a->name == NULL)
		{
			printf("\n%s\n", a->help);
			continue;
		}
		used = printf("  %s%s%s", a->name, a->value != NULL ? " " : "",
					  a->value != NULL ? a->value : "");
		if (used >= HELP_COLUMN)
			used = printf("\n") - 1;
		printf("%*s", HELP_COLUMN - used, "");
		snprintf(text, sizeof(text), "%s%s", a->help,
				 is_needed(a, mode) ? " (needed)" : "");
		add_default(a, options, text, sizeof(text));
		if (mode == NULL)
			add_modes(a, text, sizeof(text));
		print_wrapped(text);
	}
	printf("\n  --help                      prints this, and ends\n");
	exit(fflush(stdout) == 0 ? 0 : 1);
}

/* --- Parsing --- */

static const bench_argument *
with_letter(const bench_command *c, int letter)
{
	uint32_t i = 0;

	while (c->known[i].name == NULL || c->known[i].name[1] != letter)
		i++;
	return &c->known[i];
}

/* For getopt; a long option's val is its place in the table, behind letters. */
static void
describe(const bench_command *c, struct option *options, char *letters)
{
	if (c->n > MAX_ARGUMENTS)
		bench_die("options", "too many");
	for (uint32_t i = 0; i < c->n; i++)
	{
		const bench_argument *a = &c->known[i];

		if (a->name == NULL)
			continue;
		if (a->name[1] != '-')
		{
			*letters++ = a->name[1];
			if (a->value != NULL)
				*letters++ = ':';
			continue;
		}
		*options++ = (struct option){
			.name = a->name + 2,
			.has_arg = a->value != NULL ? required_argument : no_argument,
			.val = UINT8_MAX + 1 + (int) i};
	}
	*letters = '\0';
}

/* argv[1], or NULL where it asks for help. */
static const char *
mode_of(const bench_command *c, int argc, char **argv)
{
	char expected[128];

	if (argc > 1 && strcmp(argv[1], "--help") == 0)
		return NULL;
	snprintf(expected, sizeof(expected), "one of %s expected", c->modes);
	if (argc < 2 || !names(c->modes, argv[1]))
		bench_usage(argc < 2 ? "usage" : argv[1], expected);
	return argv[1];
}

int
bench_parse_arguments(const bench_command *c, void *options, int argc,
					  char **argv)
{
	struct option described[MAX_ARGUMENTS + 1] = {{0}};
	char letters[2 * MAX_ARGUMENTS + 1];
	const char *mode = c->modes != NULL ? mode_of(c, argc, argv) : NULL;
	bool given[MAX_ARGUMENTS] = {false};
	int found;

	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], "--help") == 0)
			print_help(c, options, mode);
	describe(c, described, letters);
	optind = mode != NULL ? 2 : 1;
	while ((found = getopt_long(argc, argv, letters, described, NULL)) != -1)
	{
		const bench_argument *a;

		if (found == '?') /* getopt has said why */
			bench_usage("options", "see the line above");
		a = found > UINT8_MAX ? &c->known[found - UINT8_MAX - 1]
							  : with_letter(c, found);
		if (mode != NULL && a->modes != NULL && !names(a->modes, mode))
			bench_usage(a->name, "is not an option of this mode");
		a->take(a, optarg, options);
		given[a - c->known] = true;
	}
	for (uint32_t i = 0; i < c->n; i++)
		if (!given[i] && is_needed(&c->known[i], mode))
			bench_usage(c->known[i].name, "is missing");
	return optind;
}

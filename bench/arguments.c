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
		bench_die(option, expected);
	}
	return value;
}

uint32_t
bench_count_option(const char *option, uint64_t low, uint64_t high)
{
	return (uint32_t) bench_parse_count(option, optarg, low, high);
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
		bench_die(option, expected);
	}
	return value;
}

/* --- Options as a table --- */

void
bench_take_text(const char *option, const char *text, void *target)
{
	(void) option;
	*(const char **) target = text;
}

void
bench_take_count(const char *option, const char *text, void *target)
{
	*(uint32_t *) target =
		(uint32_t) bench_parse_count(option, text, 0, UINT32_MAX);
}

void
bench_take_real(const char *option, const char *text, void *target)
{
	*(double *) target = bench_parse_real(option, text, 0, 1e12);
}

void
bench_take_numbers(const char *option, const char *text, void *target)
{
	*(bench_numbers *) target = bench_parse_numbers(option, text);
}

void
bench_take_switch(const char *option, const char *text, void *target)
{
	(void) option;
	(void) text;
	*(bool *) target = true;
}

void
bench_parse_arguments(const bench_argument *known, uint32_t n, int first,
					  int argc, char **argv)
{
	struct option options[MAX_ARGUMENTS + 1] = {{0}};
	int at = 0, c;

	if (n > MAX_ARGUMENTS)
		bench_die("options", "too many");
	for (uint32_t i = 0; i < n; i++)
	{
		options[i].name = known[i].name;
		options[i].has_arg = known[i].take == bench_take_switch
								 ? no_argument
								 : required_argument;
	}
	optind = first;
	while ((c = getopt_long(argc, argv, "", options, &at)) != -1)
	{
		char option[64];

		if (c != 0)
			exit(2); /* getopt has said why */
		snprintf(option, sizeof(option), "--%s", known[at].name);
		known[at].take(option, optarg, known[at].target);
	}
	if (optind < argc)
		bench_die(argv[optind], "not an option");
}

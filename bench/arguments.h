/*
 * arguments.h
 *		Command lines as a table, from which --help is printed, too.  Wrong ones
 *		end the program with a message and status 2.
 */
#ifndef NAVIS_BENCH_ARGUMENTS_H
#define NAVIS_BENCH_ARGUMENTS_H

#include "common.h"

/* Prints what is wrong and where help is, and exits with status 2. */
extern void bench_usage(const char *option, const char *detail)
	__attribute__((noreturn));

/* The whole text must be a number in the range. */
extern uint64_t bench_parse_count(const char *option, const char *text,
								  uint64_t low, uint64_t high);
extern double bench_parse_real(const char *option, const char *text, double low,
							   double high);

typedef struct bench_argument bench_argument;

/* Puts an option's value where it belongs in the program's options. */
typedef void (*bench_take)(const bench_argument *a, const char *text,
						   void *options);

struct bench_argument
{
	const char *name;  /* "--rows" or "-K"; NULL: help is a heading */
	const char *value; /* what --help calls it; NULL: a switch */
	const char *help;  /* with the unit; range and default are added */
	bench_take take;
	size_t at;          /* of the value in the options */
	double low, high;   /* of a number */
	const char *modes;  /* that have this option, with spaces; NULL: all */
	const char *needed; /* modes that cannot do without; ALWAYS: none can */
};

#define ALWAYS "always"

/*
 * What the options hold before is the default; one out of the range is none,
 * and not shown.
 */
extern void bench_take_text(const bench_argument *a, const char *text,
							void *options); /* const char * */
extern void bench_take_count(const bench_argument *a, const char *text,
							 void *options); /* uint32_t */
extern void bench_take_long(const bench_argument *a, const char *text,
							void *options); /* uint64_t */
extern void bench_take_real(const bench_argument *a, const char *text,
							void *options); /* double */
extern void bench_take_float(const bench_argument *a, const char *text,
							 void *options);
/* uint64_t, bytes; given in GB (10^9) or GiB. */
extern void bench_take_gb(const bench_argument *a, const char *text,
						  void *options);
extern void bench_take_gib(const bench_argument *a, const char *text,
						   void *options);
extern void bench_take_numbers(const bench_argument *a, const char *text,
							   void *options); /* bench_numbers */
extern void bench_take_switch(const bench_argument *a, const char *text,
							  void *options); /* bool */

typedef struct bench_command
{
	const char *usage; /* lines */
	const char *about; /* lines */
	const bench_argument *known;
	uint32_t n;
	const char
		*modes; /* names for argv[1], with spaces; NULL: there are none */
} bench_command;

/*
 * Reads argv; --help is always known.  Returns the place of the first argument
 * that is no option: all others have been moved before it.  With modes,
 * argv[1] is one of them.
 */
extern int bench_parse_arguments(const bench_command *c, void *options,
								 int argc, char **argv);
/* No such argument from `first` on. */
extern void bench_no_more(int first, int argc, char **argv);
/* Something that cannot be left out. */
extern void bench_require(const void *value, const char *option);

#endif

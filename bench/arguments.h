/*
 * arguments.h
 *		Command lines: checked numbers, and long options as a table.  Wrong
 *		values end the program with a message.
 */
#ifndef NAVIS_BENCH_ARGUMENTS_H
#define NAVIS_BENCH_ARGUMENTS_H

#include "common.h"

/* The whole text must be a number in the range. */
extern uint64_t bench_parse_count(const char *option, const char *text,
								  uint64_t low, uint64_t high);
/* The same of getopt's optarg; high fits 32 bits. */
extern uint32_t bench_count_option(const char *option, uint64_t low,
								   uint64_t high);
extern double bench_parse_real(const char *option, const char *text, double low,
							   double high);

/* Puts an option's value where it belongs. */
typedef void (*bench_take)(const char *option, const char *text, void *target);

/* --name VALUE; without value where take is bench_take_switch. */
typedef struct bench_argument
{
	const char *name;
	bench_take take;
	void *target;
} bench_argument;

extern void bench_take_text(const char *option, const char *text,
							void *target); /* const char * */
extern void bench_take_count(const char *option, const char *text,
							 void *target); /* uint32_t */
extern void bench_take_real(const char *option, const char *text,
							void *target); /* double, not negative */
extern void bench_take_numbers(const char *option, const char *text,
							   void *target); /* bench_numbers */
extern void bench_take_switch(const char *option, const char *text,
							  void *target); /* bool */

/* Reads argv from first on; nothing but these options may be there. */
extern void bench_parse_arguments(const bench_argument *known, uint32_t n,
								  int first, int argc, char **argv);

#endif

/*
 * sanitized.h
 *		SANITIZED is defined where the address or the thread sanitizer watches,
 *		with either compiler: memory and time are not what they are without.
 */
#ifndef NAVIS_SANITIZED_H
#define NAVIS_SANITIZED_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED
#endif
#endif

#endif

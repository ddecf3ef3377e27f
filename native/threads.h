/* Threads of the plugin inside the server, and until when they wait. */
#ifndef FIREBIRD_CDC_THREADS_H
#define FIREBIRD_CDC_THREADS_H

#include <stdint.h>
#include <time.h>

/* fbc_thread_start runs WORK on a thread of its own to the end of the process, called NAME (of
 * less than 16 bytes). The server's signals are not for it. Returns 0 or an errno. */
int fbc_thread_start(const char *name, void *(*work)(void *));

/* fbc_thread_start_large does so with as large a stack as a program's first thread has. */
int fbc_thread_start_large(const char *name, void *(*work)(void *));

/* fbc_monotonic_ms returns CLOCK_MONOTONIC in milliseconds. */
uint64_t fbc_monotonic_ms(void);

/* fbc_monotonic_in returns the time TIMEOUT_MS from now, by CLOCK_MONOTONIC. */
struct timespec fbc_monotonic_in(int timeout_ms);

#endif

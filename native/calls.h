/* Calls between the processes of a journal folder: a commit of a process that has no bridge is
 * heard of by nobody, so that process calls one that confirms for others. */
#ifndef FIREBIRD_CDC_CALLS_H
#define FIREBIRD_CDC_CALLS_H

#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* fbc_call_confirmer has a process with a bridge look for commits of others, or the shipper where
 * no bridge waits. Never waits. */
void fbc_call_confirmer(void);

/* fbc_calls_listen has the bridge of this process hear of calls from now on. */
void fbc_calls_listen(void);

/* fbc_calls_await waits until the counter of calls at WORD, in a shared page, is another than
 * SEEN, at most TIMEOUT_MS; fbc_calls_wake ends up to MOST such waits, and returns how many. Both
 * are for two libraries, so they are here. */
static inline void fbc_calls_await(void *word, uint64_t seen, int timeout_ms) {
    struct timespec timeout = {timeout_ms / 1000, timeout_ms % 1000 * 1000000L};
    /* The kernel looks at the lower half of it, which is the first. */
    syscall(SYS_futex, word, FUTEX_WAIT, (uint32_t)seen, &timeout, NULL, 0);
}

static inline long fbc_calls_wake(void *word, int most) {
    return syscall(SYS_futex, word, FUTEX_WAKE, most, NULL, NULL, 0);
}

#endif

/* Dies where a test says so; compiled into test builds only, see failpoint.h. */
#define _GNU_SOURCE
#include "failpoint.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const char *wanted = ""; /* name:count, in the environment for good */
static size_t wanted_length;
static atomic_long left;

static void read_environment(void) {
    const char *text = getenv("FBC_FAILPOINT");
    const char *count = text ? strrchr(text, ':') : NULL;
    if (!count)
        return;
    wanted = text;
    wanted_length = (size_t)(count - text);
    left = strtol(count + 1, NULL, 10);
}

void fbc_failpoint(const char *name) {
    pthread_once(&once, read_environment);
    if (strlen(name) != wanted_length || memcmp(name, wanted, wanted_length) != 0 || --left != 0)
        return;
    kill(getpid(), SIGKILL);
    for (;;) /* nothing after this point may happen, on this thread, while the signal arrives */
        pause();
}

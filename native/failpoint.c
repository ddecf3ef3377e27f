/* Dies where a test says so; compiled into test builds only, see failpoint.h. */
#define _GNU_SOURCE
#include "failpoint.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_long hits; /* of the point that is named */

void fbc_failpoint(const char *name) {
    /* read anew each time: a test names a point when the process has come so far */
    const char *wanted = getenv("FBC_FAILPOINT");
    size_t length = strlen(name);
    if (!wanted || strncmp(wanted, name, length) != 0 || wanted[length] != ':' ||
        ++hits != strtol(wanted + length + 1, NULL, 10))
        return;
    kill(getpid(), SIGKILL);
    for (;;) /* nothing after this point may happen, on this thread, while the signal arrives */
        pause();
}

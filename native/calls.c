/* Calls between the processes of a journal folder; see calls.h. */
#define _GNU_SOURCE
#include "calls.h"

#include <stdatomic.h>

#include "events.h"
#include "shared_page.h"
#include "threads.h"

enum { LOOK_MS = 1000 }; /* how often to look whether the page is another one */

void fbc_call_confirmer(void) {
    struct fbc_shared_page *page = fbc_page();
    page->calls++;
    if (fbc_calls_wake(&page->calls, 1) > 0)
        return;
    page->shipper_calls++;
    fbc_calls_wake(&page->shipper_calls, 1);
}

static void *listen(void *unused) {
    (void)unused;
    static const struct timespec pause = {.tv_sec = LOOK_MS / 1000};
    struct fbc_shared_page *page = fbc_page();
    uint64_t heard = page->calls;
    fbc_events_call(); /* somebody may have called before that */
    for (;;) {
        if (!fbc_events_are_taken()) { /* the call is for others then */
            nanosleep(&pause, NULL);
            heard = fbc_page()->calls - 1;
            continue;
        }
        fbc_calls_await(&page->calls, heard, LOOK_MS);
        struct fbc_shared_page *now = fbc_page();
        uint64_t calls = now->calls;
        if (now != page || calls != heard)
            fbc_events_call();
        page = now;
        heard = calls;
    }
    return NULL;
}

void fbc_calls_listen(void) {
    static atomic_flag is_listening = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set(&is_listening))
        return;
    if (fbc_thread_start("fbc-calls", listen) != 0) /* the bridge looks once a second, too */
        atomic_flag_clear(&is_listening);
}

/* Syncing a journal beside the engine's own page flush.
 *
 * Between prepare and commit the engine writes and syncs its changed pages. A journal's sync
 * that prepare starts and commit waits for runs at the same time, so the wait is short.
 */
#ifndef FIREBIRD_CDC_SYNC_H
#define FIREBIRD_CDC_SYNC_H

#include <stdatomic.h>

struct fbc_sync {
    struct fbc_sync *next;
    void (*run)(struct fbc_sync *sync); /* work in place of a sync of the descriptor, or null */
    int fd, folder;
    int is_written;    /* what is in FD is on disk, whatever became of FOLDER */
    int error;         /* errno of the sync, 0: on disk */
    atomic_uint state; /* a futex; see sync.c */
};

/* fbc_sync_start begins to sync FD, and then FOLDER if that is not -1; both must stay open until
 * fbc_sync_wait has returned. */
void fbc_sync_start(struct fbc_sync *sync, int fd, int folder);

/* fbc_sync_run has RUN called with SYNC on a thread that syncs, or on this one where there is none:
 * with no lock held. Nobody waits for that with fbc_sync_wait; SYNC may be gone afterwards. */
void fbc_sync_run(struct fbc_sync *sync, void (*run)(struct fbc_sync *sync));

/* fbc_sync_wait waits for the sync that was started, if any; returns its errno or 0. */
int fbc_sync_wait(struct fbc_sync *sync);

#endif

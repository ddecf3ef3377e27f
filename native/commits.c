/* Entries of commits by their tickets; see commits.h and journal/folder/commit_entries.py. */
#define _GNU_SOURCE
#include "commits.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "crc32c.h"
#include "folder.h"
#include "shared_page.h"

enum { HAS_DDL = 1, IS_UNRESOLVED = 2, IS_UNSYNCED = 4 };
enum { STEP = 1024 * 1024, AHEAD = STEP / 4 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int allocated_in = -1; /* descriptor */
static uint64_t allocated;    /* up to which byte */

/* With the folder held, and the lock. */
static int allocate(uint64_t from, struct fbc_error *error) {
    int fd = fbc_folder.commits;
    /* In whole steps, so that all processes ask for the same ones. */
    uint64_t start = from / STEP * STEP, done = fbc_page()->accounted * FBC_COMMIT_ENTRY;
    int failed = posix_fallocate(fd, (off_t)start, 2 * (off_t)STEP);
    if (failed) {
        fbc_error_set(error, failed, "no room for entries of commits in %.300s/.firebird-cdc",
                      fbc_folder.path);
        return FBC_FAILED;
    }
    done = done / STEP * STEP;
    if (done && done <= start) /* a file system that can't keeps them */
        fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)done);
    allocated_in = fd;
    allocated = start + 2 * STEP;
    return FBC_OK;
}

int fbc_commits_reserve(struct fbc_error *error) {
    int done = FBC_OK;
    fbc_folder_hold();
    uint64_t next = (fbc_page()->ticket + 1) * FBC_COMMIT_ENTRY;
    pthread_mutex_lock(&lock);
    if (allocated_in != fbc_folder.commits || next + AHEAD > allocated)
        done = allocate(next, error);
    pthread_mutex_unlock(&lock);
    fbc_folder_release();
    return done;
}

int fbc_commits_write(const struct fbc_event *event) {
    unsigned char entry[FBC_COMMIT_ENTRY] = {0};
    fbc_put64(entry, event->ticket);
    memcpy(entry + 8, event->uuid, 16);
    memcpy(entry + 24, event->home, 16);
    fbc_put64(entry + 40, event->offset);
    fbc_put64(entry + 48, event->length);
    fbc_put64(entry + 56, event->seal_end);
    fbc_put64(entry + 64, event->catalogue_offset);
    fbc_put64(entry + 72, event->events);
    fbc_put64(entry + 80, event->transaction);
    fbc_put64(entry + 88, (uint64_t)event->commit_us);
    memcpy(entry + 96, fbc_folder.boot, 16);
    entry[112] = (unsigned char)((event->has_ddl ? HAS_DDL : 0) |
                                 (event->is_unresolved ? IS_UNRESOLVED : 0) |
                                 (event->is_unsynced ? IS_UNSYNCED : 0));
    fbc_put32(entry + 124, fbc_crc32c(0, entry, 124));
    ssize_t written =
        pwrite(fbc_folder.commits, entry, sizeof entry, (off_t)(event->ticket * FBC_COMMIT_ENTRY));
    return written == (ssize_t)sizeof entry ? 0 : written < 0 ? errno : ENOSPC;
}

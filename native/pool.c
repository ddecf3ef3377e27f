/* The pool and the thread that fills it; see pool.h. */
#define _GNU_SOURCE
#include "pool.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "failpoint.h"
#include "host.h"
#include "threads.h"

enum {
    LEAST = 64, /* a process with few transactions, as Classic has many, keeps that many */
    MOST = 1024,
    BATCH = 32,
    SOON_S = 2,    /* taken so soon after they were made: keep twice as many */
    RETRY_S = 1,   /* after an error */
    NICENESS = 10, /* those that commit come first */
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct fbc_pooled journals[MOST];
    int used, wanted; /* wanted 0: there is no thread yet */
    int directory, sync;
    time_t filled_at; /* monotonic, seconds */
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .directory = -1};

int fbc_pool_name(struct fbc_pooled *journal) {
    unsigned char *uuid = journal->uuid;
    char *to = journal->name;
    if (getrandom(uuid, 16, 0) != 16)
        return errno;
    uuid[6] = (uuid[6] & 0x0f) | 0x40;
    uuid[8] = (uuid[8] & 0x3f) | 0x80;
    for (int i = 0; i < 16; i++) {
        static const char digits[] = "0123456789abcdef";
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *to++ = '-';
        *to++ = digits[uuid[i] >> 4];
        *to++ = digits[uuid[i] & 15];
    }
    *to = 0;
    return 0;
}

static time_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec;
}

/* Allocated, so that a gap fits on a disk that is full by then. Returns the descriptor, or -1. */
static int make(int directory, struct fbc_pooled *journal) {
    static const char zeros[FBC_POOL_BYTES];
    errno = fbc_pool_name(journal);
    int fd =
        errno ? -1 : openat(directory, journal->name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return -1;
    if (pwrite(fd, zeros, sizeof zeros, 0) == (ssize_t)sizeof zeros)
        return fd;
    int error = errno ? errno : ENOSPC;
    unlinkat(directory, journal->name, 0);
    close(fd);
    errno = error;
    return -1;
}

/* All at the same time, and with one commit of the file system: the last sync takes the metadata of
 * all along. */
static int put_on_disk(int directory, const int *fds, int count) {
    enum {
        WRITTEN = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER
    };
    for (int i = 0; i < count; i++)
        if (sync_file_range(fds[i], 0, 0, SYNC_FILE_RANGE_WRITE) != 0)
            return errno;
    for (int i = 0; i < count; i++)
        if (sync_file_range(fds[i], 0, 0, WRITTEN) != 0)
            return errno;
    return fsync(fds[count - 1]) == 0 && fsync(directory) == 0 ? 0 : errno;
}

/* Make up to *COUNT; fewer where that fails, and none that a power cut could take. */
static int make_batch(int directory, int sync, struct fbc_pooled *made, int *count) {
    int fds[BATCH], done = 0, error = 0;
    while (done < *count && (fds[done] = make(directory, &made[done])) >= 0)
        done++;
    if (done < *count)
        error = errno;
    int unsynced = done && sync ? put_on_disk(directory, fds, done) : 0;
    for (int i = 0; i < done; i++) {
        close(fds[i]);
        if (unsynced)
            unlinkat(directory, made[i].name, 0);
    }
    *count = unsynced ? 0 : done;
    return unsynced ? unsynced : error;
}

/* With the lock held but while the file system works. */
static int fill(void) {
    struct fbc_pooled made[BATCH];
    int directory = pool.directory, sync = pool.sync, count = pool.wanted - pool.used;
    if (count > BATCH)
        count = BATCH;
    pthread_mutex_unlock(&pool.lock);
    FBC_FAILPOINT("pool.before");
    int error = make_batch(directory, sync, made, &count);
    FBC_FAILPOINT("pool.after");
    pthread_mutex_lock(&pool.lock);
    for (int i = 0; i < count; i++)
        if (directory == pool.directory)
            pool.journals[pool.used++] = made[i];
        else /* moved meanwhile */
            unlinkat(directory, made[i].name, 0);
    return error;
}

static void *serve(void *unused) {
    int failed = 0;
    (void)unused;
    if (nice(NICENESS) == -1) /* this thread alone; at worst it stays as it was */
        errno = 0;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        while (pool.used > pool.wanted / 2)
            pthread_cond_wait(&pool.changed, &pool.lock);
        if (pool.filled_at && now() - pool.filled_at < SOON_S && pool.wanted < MOST)
            pool.wanted *= 2;
        int error = 0;
        while (!error && pool.used < pool.wanted)
            error = fill();
        if (!error) {
            pool.filled_at = now();
            failed = 0;
            continue;
        }
        pool.filled_at = 0;
        if (!failed) {
            struct fbc_error text;
            fbc_error_set(&text, error, "cannot make journals beforehand");
            fbc_host_tell(text.text);
        }
        failed = 1;
        pthread_mutex_unlock(&pool.lock);
        sleep(RETRY_S);
        pthread_mutex_lock(&pool.lock);
    }
    return NULL;
}

void fbc_pool_use(int directory, int sync) {
    pthread_mutex_lock(&pool.lock);
    while (pool.used)
        unlinkat(pool.directory, pool.journals[--pool.used].name, 0);
    pool.directory = directory;
    pool.sync = sync;
    pool.filled_at = 0;
    if (!pool.wanted && fbc_thread_start("fbc-pool", serve) == 0)
        pool.wanted = LEAST; /* else there is no pool */
    pthread_cond_signal(&pool.changed);
    pthread_mutex_unlock(&pool.lock);
}

int fbc_pool_take(struct fbc_pooled *journal) {
    pthread_mutex_lock(&pool.lock);
    int found = pool.used > 0;
    if (found)
        *journal = pool.journals[--pool.used];
    if (pool.used <= pool.wanted / 2)
        pthread_cond_signal(&pool.changed);
    pthread_mutex_unlock(&pool.lock);
    return found;
}

/* A few threads that sync journals; see sync.h. */
#define _GNU_SOURCE
#include "sync.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

enum { MOST_THREADS = 8, STACK_SIZE = 64 * 1024 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t queued = PTHREAD_COND_INITIALIZER, finished = PTHREAD_COND_INITIALIZER;
static struct fbc_sync *first, *last;
static int threads, idle, queue_length, waiting;

static int sync_now(int fd) {
    return fdatasync(fd) == 0 ? 0 : errno;
}

static void *work(void *unused) {
    (void)unused;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!first) {
            idle++;
            pthread_cond_wait(&queued, &lock);
            idle--;
        }
        struct fbc_sync *sync = first;
        first = sync->next;
        queue_length--;
        if (!first)
            last = NULL;
        pthread_mutex_unlock(&lock);
        int error = sync_now(sync->fd);
        pthread_mutex_lock(&lock);
        sync->error = error;
        sync->state = 2;
        if (waiting)
            pthread_cond_broadcast(&finished);
    }
    return NULL;
}

/* Called with the lock held. The server's signals are not for these threads. */
static int start_thread(void) {
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK_SIZE);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&thread, &attributes, work, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    threads += !failed;
    return !failed;
}

void fbc_sync_start(struct fbc_sync *sync, int fd) {
    sync->fd = fd;
    sync->error = 0;
    sync->next = NULL;
    sync->state = 1;
    pthread_mutex_lock(&lock);
    if (idle <= queue_length && threads < MOST_THREADS)
        start_thread();
    int has_thread = threads > 0;
    if (has_thread) {
        if (last)
            last->next = sync;
        else
            first = sync;
        last = sync;
        queue_length++;
        pthread_cond_signal(&queued);
    }
    pthread_mutex_unlock(&lock);
    if (!has_thread) {
        sync->error = sync_now(fd);
        sync->state = 2;
    }
}

int fbc_sync_wait(struct fbc_sync *sync) {
    pthread_mutex_lock(&lock);
    waiting++;
    while (sync->state == 1)
        pthread_cond_wait(&finished, &lock);
    waiting--;
    int error = sync->state == 2 ? sync->error : 0;
    sync->state = 0;
    pthread_mutex_unlock(&lock);
    return error;
}

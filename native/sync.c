/* A few threads that sync journals; see sync.h. */
#define _GNU_SOURCE
#include "sync.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "threads.h"

enum { MOST_THREADS = 8 };

/* A waiter turns PENDING into AWAITED, so that nobody is woken in vain. */
enum { IDLE, PENDING, AWAITED, DONE };

/* One for each in the queue. No condition variable: with several waiters those of glibc before 2.41
 * may lose a wake-up (sourceware.org bug 25847), and a commit would wait for ever. */
static sem_t queued;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all that follows */
static struct fbc_sync *first, *last;
static int threads, busy, queue_length;

/* After this SYNC may be gone: its owner needs no lock to see that it is done. */
static void finish(struct fbc_sync *sync) {
    if (sync->run) {
        sync->run(sync);
        return;
    }
    sync->is_written = fdatasync(sync->fd) == 0;
    int is_done = sync->is_written && (sync->folder < 0 || fsync(sync->folder) == 0);
    sync->error = is_done ? 0 : errno;
    if (atomic_exchange_explicit(&sync->state, DONE, memory_order_acq_rel) == AWAITED)
        syscall(SYS_futex, &sync->state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void *serve(void *unused) {
    (void)unused;
    for (;;) {
        while (sem_wait(&queued) != 0)
            continue; /* a signal; others can't fail */
        pthread_mutex_lock(&lock);
        struct fbc_sync *sync = first;
        first = sync->next;
        queue_length--;
        busy++;
        pthread_mutex_unlock(&lock);
        finish(sync);
        pthread_mutex_lock(&lock);
        busy--;
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

static void enqueue(struct fbc_sync *sync) {
    sync->next = NULL;
    pthread_mutex_lock(&lock);
    if (!threads)
        sem_init(&queued, 0, 0);
    if (threads - busy <= queue_length && threads < MOST_THREADS)
        threads += fbc_thread_start("fbc-sync", serve) == 0;
    int has_thread = threads > 0;
    if (has_thread) {
        if (first)
            last->next = sync;
        else
            first = sync;
        last = sync;
        queue_length++;
    }
    pthread_mutex_unlock(&lock);
    if (has_thread)
        sem_post(&queued);
    else
        finish(sync);
}

void fbc_sync_start(struct fbc_sync *sync, int fd, int folder) {
    sync->fd = fd;
    sync->folder = folder;
    sync->run = NULL;
    atomic_store_explicit(&sync->state, PENDING, memory_order_relaxed);
    enqueue(sync);
}

void fbc_sync_run(struct fbc_sync *sync, void (*run)(struct fbc_sync *)) {
    sync->run = run;
    enqueue(sync);
}

int fbc_sync_wait(struct fbc_sync *sync) {
    unsigned state = atomic_load_explicit(&sync->state, memory_order_acquire);
    if (state == IDLE)
        return 0;
    if (state == PENDING)
        atomic_compare_exchange_strong(&sync->state, &state, AWAITED);
    while (atomic_load_explicit(&sync->state, memory_order_acquire) != DONE)
        syscall(SYS_futex, &sync->state, FUTEX_WAIT_PRIVATE, AWAITED, NULL, NULL, 0);
    atomic_store_explicit(&sync->state, IDLE, memory_order_relaxed);
    return sync->error;
}

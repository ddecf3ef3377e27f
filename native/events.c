/* The queue of what the bridge has to know; see events.h. */
#define _GNU_SOURCE
#include "events.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "host.h"
#include "shared_page.h"
#include "threads.h"

enum {
    MOST_UNHEARD = 1024,    /* events that are kept while there is no bridge to hear of them */
    MOST_OPEN_EVENTS = 256, /* descriptors that wait for the bridge; beyond, it opens by name */
    SILENCE_MS = 1000       /* a bridge that does not call for so long is not working on anything */
};

struct event_node {
    struct event_node *next;
    struct fbc_event event;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t added, settled;
    struct event_node *first, *last;
    int open;                      /* events in it that have a descriptor */
    uint64_t handed_over, decided; /* number of the last one */
    uint64_t lost;                 /* number of the last event that there was no memory for */
    uint64_t calls;                /* of the bridge for events: it is alive */
    uint64_t called_ms;            /* when the last one was */
    int is_called;                 /* by another process: see calls.h */
    int is_unheard;                /* there is no bridge, as this process has joined others */
    int kept;                      /* events in it, while it is so */
} queue = {.lock = PTHREAD_MUTEX_INITIALIZER};

void fbc_events_init(void) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&queue.added, &attributes);
    pthread_cond_init(&queue.settled, &attributes);
    pthread_condattr_destroy(&attributes);
}

/* While there is no bridge: forget commits that others have decided. With the lock. */
static void forget_decided(void) {
    uint64_t accounted = fbc_page()->accounted;
    struct event_node *last = NULL;
    for (struct event_node **link = &queue.first; *link;) {
        struct event_node *node = *link;
        if (node->event.kind == FBC_COMMITTED && node->event.ticket <= accounted &&
            !node->event.is_unlisted) {
            *link = node->next;
            queue.kept--;
            free(node);
        } else {
            last = node;
            link = &node->next;
        }
    }
    queue.last = last;
}

/* Tell whether only a bridge of this process can deal with EVENT. */
static int needs_bridge(const struct fbc_event *event) {
    switch (event->kind) {
    case FBC_COMMITTED:
        return event->is_unlisted || event->is_unsynced || event->is_gap || event->has_ddl ||
               event->is_unresolved;
    case FBC_DEAD_TRANSACTIONS:
    case FBC_GAPS_COUNTED:
    case FBC_ABANDONED:
        return 1;
    default:
        return 0;
    }
}

uint64_t fbc_events_hand_over(const struct fbc_event *event) {
    struct event_node *node = malloc(sizeof *node);
    pthread_mutex_lock(&queue.lock);
    uint64_t number = ++queue.handed_over;
    if (node) {
        node->next = NULL;
        node->event = *event;
        node->event.number = number;
        if (event->fd >= 0 && queue.open >= MOST_OPEN_EVENTS) {
            close(event->fd);
            node->event.fd = -1;
        }
        queue.open += node->event.fd >= 0;
        if (queue.last)
            queue.last->next = node;
        else {
            queue.first = node;
            pthread_cond_signal(&queue.added);
        }
        queue.last = node;
    } else {
        if (event->fd >= 0)
            close(event->fd);
        queue.lost = number;
        pthread_cond_signal(&queue.added);
    }
    int is_due = 0;
    if (queue.is_unheard) {
        queue.kept += node != NULL;
        forget_decided();
        is_due = !node || needs_bridge(event) || queue.kept > MOST_UNHEARD;
    }
    pthread_mutex_unlock(&queue.lock);
    if (is_due)
        fbc_host_want_bridge();
    return number;
}

void fbc_events_begin_unheard(void) {
    pthread_mutex_lock(&queue.lock);
    queue.is_unheard = 1;
    queue.kept = 0;
    for (struct event_node *node = queue.first; node; node = node->next)
        queue.kept++;
    pthread_mutex_unlock(&queue.lock);
}

void fbc_events_end_unheard(void) {
    pthread_mutex_lock(&queue.lock);
    if (queue.is_unheard) {
        queue.is_unheard = 0;
        /* The bridge hears of none that is forgotten, so it will not settle them. */
        uint64_t settled = queue.first ? queue.first->event.number - 1 : queue.handed_over;
        if (settled > queue.decided)
            queue.decided = settled;
        pthread_cond_broadcast(&queue.settled);
    }
    pthread_mutex_unlock(&queue.lock);
}

enum fbc_unheard fbc_events_unheard(void) {
    enum fbc_unheard found = FBC_NOTHING_UNHEARD;
    pthread_mutex_lock(&queue.lock);
    if (queue.is_unheard)
        forget_decided();
    else /* a bridge is being started, which hears of all */
        found = FBC_COMMITS_UNDECIDED;
    for (struct event_node *node = queue.first; node; node = node->next)
        if (needs_bridge(&node->event))
            found = FBC_BRIDGE_NEEDED;
        else if (node->event.kind == FBC_COMMITTED && found == FBC_NOTHING_UNHEARD)
            found = FBC_COMMITS_UNDECIDED;
    if (queue.lost)
        found = FBC_BRIDGE_NEEDED;
    pthread_mutex_unlock(&queue.lock);
    return found;
}

void fbc_events_call(void) {
    pthread_mutex_lock(&queue.lock);
    queue.is_called = 1;
    pthread_cond_signal(&queue.added);
    pthread_mutex_unlock(&queue.lock);
}

int fbc_events_are_taken(void) {
    pthread_mutex_lock(&queue.lock);
    int are_taken = !queue.called_ms || fbc_monotonic_ms() - queue.called_ms < 2 * SILENCE_MS;
    pthread_mutex_unlock(&queue.lock);
    return are_taken;
}

void fbc_events_await_settled(uint64_t number, int timeout_ms) {
    pthread_mutex_lock(&queue.lock);
    uint64_t calls = queue.calls;
    for (int waited = 0; queue.decided < number && waited < timeout_ms; waited += SILENCE_MS) {
        struct timespec until = fbc_monotonic_in(SILENCE_MS);
        while (queue.decided < number)
            if (pthread_cond_timedwait(&queue.settled, &queue.lock, &until) == ETIMEDOUT)
                break;
        if (queue.calls == calls) /* its threads ended with the interpreter, or hang */
            break;
        calls = queue.calls;
    }
    pthread_mutex_unlock(&queue.lock);
}

int fbc_events_take(struct fbc_event *to, int most, int timeout_ms) {
    struct timespec until = fbc_monotonic_in(timeout_ms);
    int taken = 0;
    pthread_mutex_lock(&queue.lock);
    queue.calls++;
    queue.called_ms = fbc_monotonic_ms();
    while (!queue.first && !queue.lost && !queue.is_called)
        if (pthread_cond_timedwait(&queue.added, &queue.lock, &until) == ETIMEDOUT)
            break;
    while (queue.first && taken < most) {
        struct event_node *node = queue.first;
        queue.first = node->next;
        if (!queue.first)
            queue.last = NULL;
        queue.open -= node->event.fd >= 0;
        to[taken++] = node->event;
        free(node);
    }
    if (queue.lost && taken < most) { /* the journal is in the folder: have it looked for there */
        to[taken++] =
            (struct fbc_event){.kind = FBC_DEAD_TRANSACTIONS, .number = queue.lost, .fd = -1};
        queue.lost = 0;
    }
    if (queue.is_called && taken < most) {
        to[taken++] = (struct fbc_event){.kind = FBC_CALLED, .number = queue.handed_over, .fd = -1};
        queue.is_called = 0;
    }
    pthread_mutex_unlock(&queue.lock);
    return taken;
}

void fbc_events_settle(uint64_t number) {
    pthread_mutex_lock(&queue.lock);
    if (number > queue.decided)
        queue.decided = number;
    pthread_cond_broadcast(&queue.settled);
    pthread_mutex_unlock(&queue.lock);
}

/* The queue of what the bridge has to know; see events.h. */
#define _GNU_SOURCE
#include "events.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "threads.h"

enum {
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
} queue = {.lock = PTHREAD_MUTEX_INITIALIZER};

void fbc_events_init(void) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&queue.added, &attributes);
    pthread_cond_init(&queue.settled, &attributes);
    pthread_condattr_destroy(&attributes);
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
    pthread_mutex_unlock(&queue.lock);
    return number;
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
    while (!queue.first && !queue.lost)
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

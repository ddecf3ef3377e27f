/* See threads.h. */
#define _GNU_SOURCE
#include "threads.h"

#include <pthread.h>
#include <signal.h>

enum { STACK_SIZE = 64 * 1024, LARGE_STACK_SIZE = 8 * 1024 * 1024 };

static int start(const char *name, void *(*work)(void *), size_t stack_size) {
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, stack_size);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, &attributes, work, NULL);
    if (!error)
        pthread_setname_np(thread, name);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}

int fbc_thread_start(const char *name, void *(*work)(void *)) {
    return start(name, work, STACK_SIZE);
}

int fbc_thread_start_large(const char *name, void *(*work)(void *)) {
    return start(name, work, LARGE_STACK_SIZE);
}

uint64_t fbc_monotonic_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

struct timespec fbc_monotonic_in(int timeout_ms) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += (timeout_ms % 1000) * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000L;
    }
    return until;
}

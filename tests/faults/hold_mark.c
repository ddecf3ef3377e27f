/* Preloaded into a server: keeps the engine's commit marks from the disk for a while.
 *
 * A commit is a write of a transaction inventory page (its first byte is 3) into the database,
 * which is named by FBC_HOLD_DATABASE. Such a write waits
 *   while the file FBC_HOLD_WHILE exists; "<that file>.held" appears once one waits;
 *   for FBC_HOLD_US microseconds in any case, which widens the window in which a kill undoes a
 *   commit that the plugin was told of. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { INVENTORY_PAGE = 3, POLL_US = 1000 };

static void pause_us(long us) {
    struct timespec time = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&time, NULL);
}

static void hold(int fd, const void *content, size_t length) {
    const char *database = getenv("FBC_HOLD_DATABASE");
    struct stat ours, its;
    if (!database || length < 1024 || *(const unsigned char *)content != INVENTORY_PAGE ||
        stat(database, &ours) != 0 || fstat(fd, &its) != 0 || ours.st_ino != its.st_ino ||
        ours.st_dev != its.st_dev)
        return;
    const char *control = getenv("FBC_HOLD_WHILE");
    if (control && access(control, F_OK) == 0) {
        char held[4096];
        snprintf(held, sizeof held, "%s.held", control);
        close(open(held, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
        while (access(control, F_OK) == 0)
            pause_us(POLL_US);
    }
    const char *us = getenv("FBC_HOLD_US");
    if (us)
        pause_us(strtol(us, NULL, 10));
}

ssize_t write(int fd, const void *content, size_t length) {
    static ssize_t (*next)(int, const void *, size_t);
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "write");
    hold(fd, content, length);
    return next(fd, content, length);
}

ssize_t pwrite(int fd, const void *content, size_t length, off_t offset) {
    static ssize_t (*next)(int, const void *, size_t, off_t);
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "pwrite");
    hold(fd, content, length);
    return next(fd, content, length, offset);
}

ssize_t pwrite64(int fd, const void *content, size_t length, off64_t offset) {
    static ssize_t (*next)(int, const void *, size_t, off64_t);
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "pwrite64");
    hold(fd, content, length);
    return next(fd, content, length, offset);
}

/* Preloaded into a server: keeps the engine's commit marks from the disk for a while, or for ever.
 *
 * A commit is a write of a transaction inventory page (its first byte is 3) into the database,
 * which is named by FBC_HOLD_DATABASE. Such a write waits
 *   while the file FBC_HOLD_WHILE exists; "<that file>.held" appears once one waits. If a number is
 *   in that file, only a write waits that shows this transaction (of the first page) as committed:
 *   a page is also written when another process wants it;
 *   for FBC_HOLD_US microseconds in any case, which widens the window in which a kill undoes a
 *   commit that the plugin was told of.
 * FBC_HOLD_DIE=<side>:<count> has the process die at the count-th such write, before or after it,
 * of a thread that has just left the plugin's commit: there it gave back the lock of the tickets.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { INVENTORY_PAGE = 3, INVENTORY_HEAD = 20, COMMITTED = 3, POLL_US = 1000 };

static const char TICKETS[] = "/.firebird-cdc/tickets/page";
static __thread int has_left_commit;
static atomic_long marks; /* written by threads that had left it */

static void pause_us(long us) {
    struct timespec time = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&time, NULL);
}

static int is_mark(int fd, const void *content, size_t length) {
    const char *database = getenv("FBC_HOLD_DATABASE");
    struct stat ours, its;
    return database && length >= 1024 && *(const unsigned char *)content == INVENTORY_PAGE &&
           stat(database, &ours) == 0 && fstat(fd, &its) == 0 && ours.st_ino == its.st_ino &&
           ours.st_dev == its.st_dev;
}

/* Tell whether a write of CONTENT is to wait for CONTROL to go. */
static int is_awaited(const char *control, const unsigned char *content) {
    char text[32] = "";
    int fd = open(control, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0)
        return 1;
    unsigned long number = strtoul(text, NULL, 10);
    return (content[INVENTORY_HEAD + number / 4] >> number % 4 * 2 & 3) == COMMITTED;
}

static void hold(const void *content) {
    const char *control = getenv("FBC_HOLD_WHILE");
    if (control && is_awaited(control, content)) {
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

static int dies(void) {
    const char *when = getenv("FBC_HOLD_DIE");
    return when && *when;
}

static void die(const char *side, long mark) {
    const char *when = getenv("FBC_HOLD_DIE");
    size_t length = strlen(side);
    if (when && strncmp(when, side, length) == 0 && when[length] == ':' &&
        strtol(when + length + 1, NULL, 10) == mark)
        kill(getpid(), SIGKILL);
}

/* Return which mark a write is, 0 if it is none of a commit. */
static long begin(int fd, const void *content, size_t length) {
    if (!is_mark(fd, content, length))
        return 0;
    hold(content);
    if (!has_left_commit || !dies())
        return 0;
    has_left_commit = 0;
    long mark = atomic_fetch_add(&marks, 1) + 1;
    die("before", mark);
    return mark;
}

static ssize_t end(ssize_t written, long mark) {
    if (mark)
        die("after", mark);
    return written;
}

int flock(int fd, int operation) {
    static int (*next)(int, int);
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "flock");
    if (operation == LOCK_UN && dies()) {
        char link[64], path[4096];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, path, sizeof path), tail = sizeof TICKETS - 1;
        if (length > tail && memcmp(path + length - tail, TICKETS, (size_t)tail) == 0)
            has_left_commit = 1;
    }
    return next(fd, operation);
}

ssize_t write(int fd, const void *content, size_t length) {
    static ssize_t (*next)(int, const void *, size_t);
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "write");
    long mark = begin(fd, content, length);
    return end(next(fd, content, length), mark);
}

ssize_t pwrite(int fd, const void *content, size_t length, off_t offset) {
    static ssize_t (*next)(int, const void *, size_t, off_t);
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "pwrite");
    long mark = begin(fd, content, length);
    return end(next(fd, content, length, offset), mark);
}

ssize_t pwrite64(int fd, const void *content, size_t length, off64_t offset) {
    static ssize_t (*next)(int, const void *, size_t, off64_t);
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "pwrite64");
    long mark = begin(fd, content, length);
    return end(next(fd, content, length, offset), mark);
}

/* A preload under which syncs of what lies in a journal folder fail, as on a dying disk, while
 * the file named by FAILING_SYNC exists. FAILING_SYNC_OF: only where the path has this in it.
 * "<that file>.log" gets a line for each sync meanwhile: "failed" or "done", and what was synced. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void note(const char *flag, const char *what, const char *path) {
    char name[4096];
    snprintf(name, sizeof name, "%s.log", flag);
    int fd = open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    dprintf(fd, "%s %s\n", what, path);
    close(fd);
}

static int fails(int fd) {
    char link[64], path[4096] = "";
    const char *flag = getenv("FAILING_SYNC"), *part = getenv("FAILING_SYNC_OF");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (!flag || access(flag, F_OK) != 0 || readlink(link, path, sizeof path - 1) <= 0 ||
        !strstr(path, "/journals"))
        return 0;
    int is_failing = !part || strstr(path, part);
    note(flag, is_failing ? "failed" : "done", path);
    return is_failing;
}

#define SYNC(name)                                                                                 \
    int name(int fd) {                                                                             \
        static int (*real)(int);                                                                   \
        if (fails(fd)) {                                                                           \
            errno = EIO;                                                                           \
            return -1;                                                                             \
        }                                                                                          \
        if (!real)                                                                                 \
            real = (int (*)(int))dlsym(RTLD_NEXT, #name);                                          \
        return real(fd);                                                                           \
    }

SYNC(fsync)
SYNC(fdatasync)

/* A preload under which syncs of what lies in a journal folder fail, as on a dying disk, while
 * the file named by FAILING_SYNC exists. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fails(int fd) {
    char link[64], path[4096] = "";
    const char *flag = getenv("FAILING_SYNC");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    return flag && access(flag, F_OK) == 0 && readlink(link, path, sizeof path - 1) > 0 &&
           strstr(path, "/journals");
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

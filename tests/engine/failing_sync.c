/* A preload under which syncs of what lies in a journal folder fail, as on a dying disk, while
 * the file named by FAILING_SYNC exists. Where that has words in it, only those fail that one of
 * them means: by the name of the call, as "/journals", which is the folder itself, or by a part of
 * the path in it. "<that file>.log" gets a line for each sync meanwhile: "failed" or "done", the
 * call, and what was synced. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const char FOLDER[] = "/journals";

static void note(const char *flag, const char *what, const char *call, const char *path) {
    char name[4096];
    snprintf(name, sizeof name, "%s.log", flag);
    int fd = open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    dprintf(fd, "%s %s %s\n", what, call, path);
    close(fd);
}

static int is_meant(const char *flag, const char *call, const char *at) {
    char words[512], *rest;
    int fd = open(flag, O_RDONLY | O_CLOEXEC);
    if (fd < 0) /* it works again just now */
        return 0;
    ssize_t length = read(fd, words, sizeof words - 1);
    close(fd);
    words[length < 0 ? 0 : length] = 0;
    int is_failing = !words[0];
    for (char *word = strtok_r(words, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        if (strcmp(word, call) == 0 || strcmp(word, at) == 0 || strstr(at + strlen(FOLDER), word))
            is_failing = 1;
    return is_failing;
}

static int fails(const char *call, const char *path) {
    const char *flag = getenv("FAILING_SYNC"), *at = strstr(path, FOLDER);
    if (!at)
        return 0;
    int is_failing = is_meant(flag, call, at);
    note(flag, is_failing ? "failed" : "done", call, path);
    if (is_failing)
        errno = EIO;
    return is_failing;
}

static int is_watching(void) {
    const char *flag = getenv("FAILING_SYNC");
    return flag && access(flag, F_OK) == 0;
}

static int fails_of(const char *call, int fd) {
    char link[64], path[4096] = "";
    if (!is_watching())
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    return readlink(link, path, sizeof path - 1) > 0 && fails(call, path);
}

#define REAL(result, name, ...) ((result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name))

int fsync(int fd) {
    return fails_of("fsync", fd) ? -1 : REAL(int, fsync, int)(fd);
}

int fdatasync(int fd) {
    return fails_of("fdatasync", fd) ? -1 : REAL(int, fdatasync, int)(fd);
}

int sync_file_range(int fd, off64_t offset, off64_t length, unsigned flags) {
    if (fails_of("sync_file_range", fd))
        return -1;
    return REAL(int, sync_file_range, int, off64_t, off64_t, unsigned)(fd, offset, length, flags);
}

int msync(void *address, size_t length, int flags) {
    char line[4096];
    FILE *maps = is_watching() ? fopen("/proc/self/maps", "re") : NULL;
    int is_failing = 0;
    while (maps && !is_failing && fgets(line, sizeof line, maps)) {
        line[strcspn(line, "\n")] = 0;
        if (strtoull(line, NULL, 16) == (uintptr_t)address && strchr(line, '/'))
            is_failing = fails("msync", strchr(line, '/'));
    }
    if (maps)
        fclose(maps);
    return is_failing ? -1 : REAL(int, msync, void *, size_t, int)(address, length, flags);
}

/* The file that this plugin was loaded from; see own_file.h.
 *
 * Versions lie beside each other in <prefix>/versions/<version>/, and the link <prefix>/current
 * leads to the one in use. The engine opens the plugin by way of that link (plugin.c), so the name
 * that was opened says nothing: the kernel knows which file it was. */
#define _GNU_SOURCE
#include "own_file.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char versions[] = "/versions/";

static char own_file[PATH_MAX];
static char own_version[PATH_MAX];

/* Write the path of the file that is mapped at ADDRESS. Source: proc(5), /proc/PID/maps. */
static int find_mapped(const void *address, char *path, size_t size) {
    char *line = NULL;
    size_t room = 0;
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps && !found && getline(&line, &room, maps) > 0) {
        uintptr_t from, to;
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &from, &to) != 2 || (uintptr_t)address < from ||
            (uintptr_t)address >= to)
            continue;
        const char *name = strchr(line, '/');
        if (!name)
            break;
        snprintf(path, size, "%.*s", (int)strcspn(name, "\n"), name);
        found = 1;
    }
    if (maps)
        fclose(maps);
    free(line);
    return found;
}

void fbc_own_file_init(void) {
    static const char deleted[] = " (deleted)";
    Dl_info own;
    /* An address of what is read from the file: what begins as zeros is mapped from nowhere. */
    if (!find_mapped(versions, own_file, sizeof own_file) && dladdr(versions, &own) &&
        own.dli_fname && !realpath(own.dli_fname, own_file))
        snprintf(own_file, sizeof own_file, "%s", own.dli_fname);
    size_t length = strlen(own_file), end = sizeof deleted - 1;
    if (length > end && strcmp(own_file + length - end, deleted) == 0)
        own_file[length - end] = 0;
    const char *last = NULL;
    for (const char *at = own_file; (at = strstr(at, versions)); at++)
        last = at;
    const char *behind = last ? strchr(last + sizeof versions - 1, '/') : NULL;
    char python[PATH_MAX];
    if (!behind)
        return;
    snprintf(own_version, sizeof own_version, "%.*s", (int)(behind - own_file), own_file);
    snprintf(python, sizeof python, "%.4000s/lib/libpython.so", own_version);
    if (access(python, F_OK) != 0)
        own_version[0] = 0; /* it is called so by chance */
}

const char *fbc_own_file(void) {
    return own_file;
}

const char *fbc_own_version(void) {
    return own_version;
}

void fbc_beside_own_file(const char *part, char *path, size_t size) {
    const char *slash = strrchr(own_file, '/');
    snprintf(path, size, "%.*s%s", slash ? (int)(slash - own_file + 1) : 0, own_file, part);
}

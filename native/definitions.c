/* Completed definitions of tables as files; see definitions.h. */
#define _GNU_SOURCE
#include "definitions.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "access.h"
#include "crc32c.h"
#include "folder.h"

enum { MOST_BYTES = 64 * 1024 * 1024, NAME = 64 };

static const char magic[8] = "FBCDCDEF";

/* The start of such a file. Behind it stand path, definition as shown, and complete. */
struct header {
    char magic[8];
    unsigned char boot[16], guid[16];
    uint64_t tickets_device, tickets_inode; /* whose page the generation is of */
    uint64_t generation;
    uint32_t path_length, shown_length, length;
    uint32_t crc; /* of all before it and all behind it */
};

/* Return the folder of definitions, which the first bridge has made; -1 if there is none. */
static int open_folder(void) {
    fbc_folder_hold();
    int folder = openat(fbc_folder.journals, ".firebird-cdc/definitions",
                        O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    fbc_folder_release();
    return folder;
}

static int fill_header(struct header *header, const struct fbc_database *database,
                       uint64_t generation, size_t shown_length, size_t length) {
    struct stat tickets;
    *header = (struct header){.generation = generation,
                              .path_length = (uint32_t)strlen(database->path),
                              .shown_length = (uint32_t)shown_length,
                              .length = (uint32_t)length};
    memcpy(header->magic, magic, sizeof magic);
    memcpy(header->guid, database->guid, 16);
    fbc_folder_hold();
    memcpy(header->boot, fbc_folder.boot, 16);
    int done = fstat(fbc_folder.tickets, &tickets) == 0;
    fbc_folder_release();
    header->tickets_device = tickets.st_dev;
    header->tickets_inode = tickets.st_ino;
    return done;
}

static uint32_t checksum(const struct header *header, const char *rest, size_t length) {
    return fbc_crc32c(fbc_crc32c(0, header, offsetof(struct header, crc)), rest, length);
}

static void name_of(const struct fbc_database *database, uint64_t generation, const char *shown,
                    size_t shown_length, char name[NAME]) {
    snprintf(name, NAME, "%016llx-%016llx-%08x", (unsigned long long)fbc_database_key(database),
             (unsigned long long)generation, (unsigned)fbc_crc32c(0, shown, shown_length));
}

/* Remove what is kept of DATABASE as of generations before this one. */
static void remove_former(int folder, const struct fbc_database *database, uint64_t generation) {
    unsigned long long key, former;
    int again = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = again < 0 ? NULL : fdopendir(again);
    if (!entries) {
        if (again >= 0)
            close(again);
        return;
    }
    for (struct dirent *entry; (entry = readdir(entries));)
        if (sscanf(entry->d_name, "%16llx-%16llx-", &key, &former) == 2 &&
            key == fbc_database_key(database) && former < generation)
            unlinkat(folder, entry->d_name, 0);
    closedir(entries);
}

void fbc_definition_keep(const struct fbc_database *database, uint64_t generation,
                         const char *shown, size_t shown_length, const char *complete,
                         size_t length) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static uint64_t swept, swept_in; /* generation, and key of the database */
    struct header header;
    char name[NAME], temporary[NAME];
    size_t path_length = strlen(database->path), size = path_length + shown_length + length;
    int folder = open_folder();
    char *content = folder < 0 ? NULL : malloc(sizeof header + size);
    if (content && fill_header(&header, database, generation, shown_length, length)) {
        char *rest = content + sizeof header;
        memcpy(rest, database->path, path_length);
        memcpy(rest + path_length, shown, shown_length);
        memcpy(rest + path_length + shown_length, complete, length);
        header.crc = checksum(&header, rest, size);
        memcpy(content, &header, sizeof header);
        name_of(database, generation, shown, shown_length, name);
        snprintf(temporary, sizeof temporary, "part-%d", (int)getpid());
        pthread_mutex_lock(&lock);
        int fd = fbc_access_open(folder, temporary, O_WRONLY | O_TRUNC);
        int done =
            fd >= 0 && write(fd, content, sizeof header + size) == (ssize_t)(sizeof header + size);
        if (fd >= 0)
            close(fd);
        if (fd >= 0 && (!done || renameat(folder, temporary, folder, name) != 0))
            unlinkat(folder, temporary, 0);
        if (swept != generation || swept_in != fbc_database_key(database))
            remove_former(folder, database, generation);
        swept = generation;
        swept_in = fbc_database_key(database);
        pthread_mutex_unlock(&lock);
    }
    free(content);
    if (folder >= 0)
        close(folder);
}

/* Read the file FD if it is what WANTED is the header of, but for length and checksum, and was kept
 * of SHOWN; the complete form stands at *AT in the result, which the caller frees. */
static char *read_kept(int fd, const struct header *wanted, const struct fbc_database *database,
                       const char *shown, size_t *at, size_t *length) {
    struct stat status;
    struct header header;
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || status.st_uid != geteuid() ||
        status.st_size < (off_t)sizeof header || status.st_size > MOST_BYTES)
        return NULL;
    size_t size = (size_t)status.st_size;
    char *content = malloc(size);
    if (!content)
        return NULL;
    char *rest = content + sizeof header;
    size_t known = (size_t)wanted->path_length + wanted->shown_length;
    int is_right = read(fd, content, size) == (ssize_t)size;
    memcpy(&header, content, sizeof header);
    is_right = is_right && memcmp(&header, wanted, offsetof(struct header, length)) == 0 &&
               size == sizeof header + known + header.length &&
               header.crc == checksum(&header, rest, size - sizeof header) &&
               memcmp(rest, database->path, wanted->path_length) == 0 &&
               memcmp(rest + wanted->path_length, shown, wanted->shown_length) == 0;
    if (!is_right) {
        free(content);
        return NULL;
    }
    *at = sizeof header + known;
    *length = header.length;
    return content;
}

char *fbc_definition_find(const struct fbc_database *database, uint64_t generation,
                          const char *shown, size_t shown_length, size_t *length) {
    struct header wanted;
    char name[NAME];
    size_t at;
    int folder = open_folder();
    if (folder < 0)
        return NULL;
    name_of(database, generation, shown, shown_length, name);
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    close(folder);
    if (fd < 0)
        return NULL;
    char *content = fill_header(&wanted, database, generation, shown_length, 0)
                        ? read_kept(fd, &wanted, database, shown, &at, length)
                        : NULL;
    close(fd);
    if (content)
        memmove(content, content + at, *length);
    return content;
}

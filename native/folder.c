/* The journal folder, and the files made there; see folder.h. */
#define _GNU_SOURCE
#include "folder.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "counters.h"
#include "failpoint.h"
#include "pool.h"

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
struct fbc_folder fbc_folder = {
    .journals = -1, .pool = -1, .tickets = -1, .commits = -1, .slots = -1};

void fbc_folder_hold(void) {
    pthread_rwlock_rdlock(&lock);
}

void fbc_folder_hold_alone(void) {
    pthread_rwlock_wrlock(&lock);
}

void fbc_folder_release(void) {
    pthread_rwlock_unlock(&lock);
}

void fbc_lock_file(int fd) {
    while (flock(fd, LOCK_EX) != 0 && errno == EINTR)
        ;
}

int fbc_folder_is_in_place(struct fbc_error *error) {
    struct stat now;
    fbc_folder_hold();
    int failed = stat(fbc_folder.path, &now) != 0;
    int reason = failed ? errno : 0;
    int in_place = !failed && now.st_dev == fbc_folder.device && now.st_ino == fbc_folder.inode;
    if (!in_place)
        fbc_error_set(error, reason, "connector.journal.directory %s was %s while the server runs",
                      fbc_folder.path, failed ? "removed" : "replaced");
    fbc_folder_release();
    return in_place;
}

int fbc_folder_is(int fd) {
    struct stat status;
    fbc_folder_hold();
    int same = fstat(fd, &status) == 0 && status.st_dev == fbc_folder.device &&
               status.st_ino == fbc_folder.inode;
    fbc_folder_release();
    return same;
}

int fbc_folder_holds(int fd, const char *name, struct fbc_error *error) {
    struct stat own, named;
    char live[64];
    snprintf(live, sizeof live, "%s.log.live", name);
    fbc_folder_hold();
    int in_place = fstat(fd, &own) == 0 &&
                   fstatat(fbc_folder.journals, live, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
                   own.st_dev == named.st_dev && own.st_ino == named.st_ino;
    if (!in_place)
        fbc_error_set(error, 0, "the journal %s is no longer in connector.journal.directory %s",
                      live, fbc_folder.path);
    fbc_folder_release();
    return in_place;
}

/* Create a journal with a random name in FOLDER. */
static int create_journal(int folder, struct fbc_pooled *journal, struct fbc_error *error) {
    char live[64];
    int reason = fbc_pool_name(journal);
    if (reason) {
        fbc_error_set(error, reason, "no random bytes for a journal's name");
        return -1;
    }
    snprintf(live, sizeof live, "%s.log.live", journal->name);
    int fd = openat(folder, live, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    reason = fd < 0 ? errno : 0;
    if (fd >= 0 && fbc_folder.is_synced && fsync(folder) != 0) {
        reason = errno;
        unlinkat(folder, live, 0);
        close(fd);
        fd = -1;
    }
    if (fd < 0)
        fbc_error_set(error, reason, "cannot create the journal %s in connector.journal.directory",
                      live);
    return fd;
}

/* Give the journal from the pool its name; -1: that can't be done. */
static int open_pooled(const struct fbc_pooled *journal) {
    char live[64];
    snprintf(live, sizeof live, "%s.log.live", journal->name);
    FBC_FAILPOINT("take.before");
    if (renameat(fbc_folder.pool, journal->name, fbc_folder.journals, live) != 0)
        return -1;
    int fd = openat(fbc_folder.journals, live, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        unlinkat(fbc_folder.journals, live, 0);
    return fd;
}

int fbc_folder_take_journal(char name[40], unsigned char uuid[16], struct fbc_error *error) {
    struct fbc_pooled journal;
    int fd = -1;
    fbc_folder_hold();
    if (fbc_pool_take(&journal))
        fd = open_pooled(&journal);
    if (fd < 0)
        fd = create_journal(fbc_folder.journals, &journal, error);
    fbc_folder_release();
    if (fd < 0)
        return -1;
    FBC_FAILPOINT("take.after");
    fbc_disk_grow(FBC_POOL_BYTES); /* what is in the pool does not count */
    memcpy(name, journal.name, 40);
    memcpy(uuid, journal.uuid, 16);
    return fd;
}

int fbc_folder_make_ownerless(const char *path, char name[40], unsigned char uuid[16], int *folder,
                              struct fbc_error *error) {
    struct fbc_pooled journal;
    *folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*folder < 0) {
        fbc_error_set(error, errno, "cannot open connector.journal.directory %.300s", path);
        return -1;
    }
    int fd = create_journal(*folder, &journal, error);
    if (fd < 0) {
        close(*folder);
        *folder = -1;
        return -1;
    }
    memcpy(name, journal.name, 40);
    memcpy(uuid, journal.uuid, 16);
    return fd;
}

int fbc_folder_discard_journal(const char *name, int durably) {
    char live[64];
    snprintf(live, sizeof live, "%s.log.live", name);
    fbc_folder_hold();
    unlinkat(fbc_folder.journals, live, 0);
    /* without the second one a power cut may take it back into the pool */
    int is_done = !durably || (fsync(fbc_folder.journals) == 0 && fsync(fbc_folder.pool) == 0);
    fbc_folder_release();
    return is_done;
}

int fbc_folder_has_room(uint64_t own, struct fbc_error *error) {
    fbc_folder_hold();
    int has_room = fbc_disk_has_room(fbc_folder.journals, fbc_folder.path, own, error);
    fbc_folder_release();
    return has_room;
}

void fbc_folder_measure(uint32_t if_older_ms, struct fbc_disk *disk) {
    fbc_folder_hold();
    int folder = fbc_folder.journals;
    fbc_folder_release();
    fbc_disk_measure(folder, if_older_ms, disk); /* descriptors of folders stay open */
}

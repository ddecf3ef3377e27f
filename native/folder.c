/* The journal folder, and the files made there; see folder.h. */
#define _GNU_SOURCE
#include "folder.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "access.h"
#include "counters.h"
#include "failpoint.h"

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
struct fbc_folder fbc_folder = {
    .journals = -1, .making = -1, .tickets = -1, .commits = -1, .slots = -1};

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

/* Tell whether NAME in FOLDER is the file with INODE on DEVICE. Its times are not asked for: then
 * Linux, since 6.13, notes a new one with the next write, which costs more than the write. */
static int is_file(int folder, const char *name, dev_t device, ino_t inode) {
    struct statx found;
    return statx(folder, name, AT_SYMLINK_NOFOLLOW | AT_STATX_DONT_SYNC, STATX_INO, &found) == 0 &&
           makedev(found.stx_dev_major, found.stx_dev_minor) == device && found.stx_ino == inode;
}

int fbc_folder_holds(int fd, const char *name, struct fbc_error *error) {
    struct stat own;
    char live[64];
    snprintf(live, sizeof live, "%s.log.live", name);
    fbc_folder_hold();
    int in_place =
        fstat(fd, &own) == 0 && is_file(fbc_folder.journals, live, own.st_dev, own.st_ino);
    if (!in_place)
        fbc_error_set(error, 0, "the journal %s is no longer in connector.journal.directory %s",
                      live, fbc_folder.path);
    fbc_folder_release();
    return in_place;
}

int fbc_folder_leads_to(const char *name, dev_t device, ino_t inode) {
    char path[sizeof fbc_folder.path + 64];
    fbc_folder_hold();
    snprintf(path, sizeof path, "%s/%s.log.live", fbc_folder.path, name);
    fbc_folder_release();
    return is_file(AT_FDCWD, path, device, inode);
}

void fbc_uuid_text(const unsigned char uuid[16], char text[40]) {
    for (int i = 0; i < 16; i++) {
        static const char digits[] = "0123456789abcdef";
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *text++ = '-';
        *text++ = digits[uuid[i] >> 4];
        *text++ = digits[uuid[i] & 15];
    }
    *text = 0;
}

int fbc_journal_name(char name[40], unsigned char uuid[16]) {
    if (getrandom(uuid, 16, 0) != 16)
        return errno;
    uuid[6] = (uuid[6] & 0x0f) | 0x40;
    uuid[8] = (uuid[8] & 0x3f) | 0x80;
    fbc_uuid_text(uuid, name);
    return 0;
}

/* Create the file NAME in FOLDER, locked as long as it is open; -1, with errno, if that fails. */
static int create_locked(int folder, const char *name) {
    int fd = fbc_access_open(folder, name, O_RDWR | O_EXCL);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0) {
        int reason = errno;
        unlinkat(folder, name, 0);
        close(fd);
        errno = reason;
        return -1;
    }
    return fd;
}

int fbc_folder_make_file(const char *name) {
    return create_locked(fbc_folder.making, name);
}

/* Open the folder once more: of a failed sync each such opening is told, but only once. */
static int open_again(void) {
    return openat(fbc_folder.journals, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static int name_live(const char *name) {
    char live[64];
    snprintf(live, sizeof live, "%s.log.live", name);
    return renameat(fbc_folder.making, name, fbc_folder.journals, live) == 0 ? 0 : errno;
}

int fbc_folder_name_live(const char *name, int is_synced) {
    char live[64];
    int folder = is_synced ? open_again() : -1;
    if (is_synced && folder < 0)
        return errno;
    int failed = name_live(name);
    if (!failed && is_synced && fsync(folder) != 0) {
        failed = errno;
        snprintf(live, sizeof live, "%s.log.live", name);
        unlinkat(fbc_folder.journals, live, 0);
    }
    if (folder >= 0)
        close(folder);
    return failed;
}

int fbc_folder_take_journal(const char *name, int *folder, struct fbc_error *error) {
    fbc_folder_hold();
    int fd = fbc_folder_make_file(name);
    int failed = fd < 0 ? errno : posix_fallocate(fd, 0, FBC_OWN_BYTES);
    FBC_FAILPOINT("take.before");
    *folder = -1;
    if (!failed && fbc_folder.is_synced && (*folder = open_again()) < 0)
        failed = errno;
    if (!failed) /* it is synced with the file */
        failed = name_live(name);
    if (failed) {
        if (*folder >= 0)
            close(*folder);
        *folder = -1;
        fbc_error_set(error, failed, "cannot create the journal %s.log.live in %.300s", name,
                      fbc_folder.path);
        if (fd >= 0) {
            unlinkat(fbc_folder.making, name, 0);
            close(fd);
        }
        fd = -1;
    } else
        fbc_disk_grow(FBC_OWN_BYTES);
    fbc_folder_release();
    FBC_FAILPOINT("take.after");
    errno = failed;
    return fd;
}

int fbc_folder_name_again(const char *name) {
    char live[64];
    snprintf(live, sizeof live, "%s.log.live", name);
    fbc_folder_hold();
    int folder = open_again();
    int failed = folder < 0 ? errno : 0;
    if (!failed)
        failed = renameat(fbc_folder.journals, live, fbc_folder.making, name) == 0 ? name_live(name)
                                                                                   : errno;
    if (!failed && fsync(folder) != 0)
        failed = errno;
    if (folder >= 0)
        close(folder);
    fbc_folder_release();
    return failed;
}

int fbc_folder_make_ownerless(const char *path, const char *name, int *folder,
                              struct fbc_error *error) {
    char live[64];
    *folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*folder < 0) {
        fbc_error_set(error, errno, "cannot open connector.journal.directory %.300s", path);
        return -1;
    }
    snprintf(live, sizeof live, "%s.log.live", name);
    int fd = create_locked(*folder, live);
    if (fd < 0) {
        fbc_error_set(error, errno, "cannot create the journal %s in connector.journal.directory",
                      live);
        close(*folder);
        *folder = -1;
    }
    return fd;
}

int fbc_folder_discard_journal(const char *name, int durably) {
    char live[64];
    snprintf(live, sizeof live, "%s.log.live", name);
    fbc_folder_hold();
    unlinkat(fbc_folder.journals, live, 0);
    int is_done = !durably || fsync(fbc_folder.journals) == 0;
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

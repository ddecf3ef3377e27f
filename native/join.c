/* Joining the processes that work in a journal folder, without Python; see join.h. */
#define _GNU_SOURCE
#include "join.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "access.h"
#include "crc32c.h"
#include "failpoint.h"
#include "folder.h"
#include "own_file.h"
#include "policy.h"
#include "shared_page.h"
#include "threads.h"

enum { SILENT_MS = 2000 }; /* who confirms comes round more often */

static const char file_name[] = "join", shipper_lock[] = "shipper.lock";
static const int folder_flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;

static uint64_t plugin[4];

/* What this process has joined. Descriptors stay open to its end. */
static struct {
    int state;       /* the folder .firebird-cdc */
    int definitions; /* the one in it, locked: this process is there to see what becomes of tables
                      */
    int owners;      /* the one in it */
    char publisher[40]; /* of that file, as a name in owners/ */
    unsigned char owner[16], boot[16];
} joined = {.state = -1, .definitions = -1, .owners = -1};

static struct fbc_identity identity_of(const struct stat *status) {
    return (struct fbc_identity){
        .device = status->st_dev,
        .inode = status->st_ino,
        .mtime_ns = (int64_t)status->st_mtim.tv_sec * 1000000000 + status->st_mtim.tv_nsec,
        .size = status->st_size,
    };
}

void fbc_join_init(void) {
    struct stat status;
    if (stat(fbc_own_file(), &status) != 0)
        return;
    struct fbc_identity identity = identity_of(&status);
    _Static_assert(sizeof identity == sizeof plugin, "as bridge_api.h says");
    memcpy(plugin, &identity, sizeof plugin);
}

const uint64_t *fbc_join_plugin(void) {
    return plugin;
}

/* Tell whether a process holds the lock of the file NAME in FOLDER. Who asks takes a shared one for
 * a moment, as journal/folder/locks.py. */
static int is_held(int folder, const char *name) {
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return 0;
    int held = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    close(fd);
    return held;
}

/* Read the file join in STATE if it is whole and of this user; FBC_OK or FBC_FAILED. */
static int read_join(int state, struct fbc_join *join) {
    struct stat status;
    int fd = openat(state, file_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return FBC_FAILED;
    int is_whole = fstat(fd, &status) == 0 && S_ISREG(status.st_mode) &&
                   status.st_uid == geteuid() && !(status.st_mode & (S_IWGRP | S_IWOTH)) &&
                   status.st_size == sizeof *join && read(fd, join, sizeof *join) == sizeof *join;
    close(fd);
    return is_whole && memcmp(join->magic, "FBCDCJOI", 8) == 0 &&
                   join->version == FBC_JOIN_VERSION && join->size == sizeof *join &&
                   join->crc == fbc_crc32c(0, join, offsetof(struct fbc_join, crc)) &&
                   memchr(join->record, 0, sizeof join->record)
               ? FBC_OK
               : FBC_FAILED;
}

static int read_boot(char text[40], unsigned char boot[16]) {
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? -1 : read(fd, text, 36);
    if (fd >= 0)
        close(fd);
    if (length != 36)
        return FBC_FAILED;
    text[36] = 0;
    for (int i = 0, at = 0; i < 16; i++, at += 2) {
        at += text[at] == '-';
        if (sscanf(text + at, "%2hhx", &boot[i]) != 1)
            return FBC_FAILED;
    }
    return FBC_OK;
}

static int is_at(const struct stat *status, uint64_t device, uint64_t inode) {
    return status->st_dev == device && status->st_ino == inode;
}

/* Tell whether what JOIN says of files holds: the plugin, the connector's file CONFIG, which was
 * read before this is asked, and the folder. */
static int holds(const struct fbc_join *join, const char *config, int folder) {
    struct stat status;
    if (memcmp(&join->plugin, plugin, sizeof plugin) != 0 || !plugin[1] ||
        stat(config, &status) != 0)
        return 0;
    struct fbc_identity now = identity_of(&status);
    return memcmp(&join->config, &now, sizeof now) == 0 && fstat(folder, &status) == 0 &&
           is_at(&status, join->folder_device, join->folder_inode);
}

/* Tell whether the process lives that published the file join, or whose place it has taken. */
static int publisher_lives(void) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct fbc_join join;
    pthread_mutex_lock(&lock);
    int lives = is_held(joined.owners, joined.publisher);
    if (!lives && read_join(joined.state, &join)) {
        fbc_uuid_text(join.publisher, joined.publisher);
        lives = is_held(joined.owners, joined.publisher);
    }
    pthread_mutex_unlock(&lock);
    return lives;
}

enum fbc_confirmers fbc_join_confirmers(void) {
    if (publisher_lives())
        return FBC_BRIDGE;
    return is_held(joined.state, shipper_lock) ? FBC_SHIPPER_ALONE : FBC_NOBODY;
}

/* Tell whether those who confirm come round: a bridge may hang, and a shipper lacks an engine to
 * ask. */
static int is_confirmed(const struct fbc_shared_page *page) {
    enum fbc_confirmers confirmers = fbc_join_confirmers();
    if (confirmers == FBC_NOBODY)
        return 0;
    if (page->accounted >= page->ticket)
        return 1;
    if (page->undecided)
        return confirmers == FBC_BRIDGE;
    return fbc_monotonic_ms() - page->heartbeat_ms < SILENT_MS;
}

/* Take the lock that tells a shipper that it is needed. Who asks for it holds it for a moment. */
static int lock_bridge(int state) {
    enum { ATTEMPTS = 20 };
    static const struct timespec pause = {.tv_nsec = 1000000};
    int fd = openat(state, "bridge.lock", O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    for (int i = 0; fd >= 0; i++) {
        if (flock(fd, LOCK_SH | LOCK_NB) == 0)
            return fd;
        if (i == ATTEMPTS)
            break;
        nanosleep(&pause, NULL);
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

static int sync_and_close(int folder) {
    int done = folder >= 0 && fsync(folder) == 0;
    if (folder >= 0)
        close(folder);
    return done;
}

/* Say which options this process has, for `status` and `check`; nobody's commit hangs on that. */
static void tell_record(int state, const char *owner, const char *record) {
    char temporary[64], name[64];
    snprintf(temporary, sizeof temporary, "servers/.%s.part", owner);
    snprintf(name, sizeof name, "servers/%s", owner);
    int fd = fbc_access_open(state, temporary, O_WRONLY | O_TRUNC);
    if (fd < 0)
        return;
    int length = dprintf(fd, "[\"%s\", %d%s", owner, (int)getpid(), record);
    close(fd);
    if (length < 0 || renameat(state, temporary, state, name) != 0)
        unlinkat(state, temporary, 0);
}

/* Make what each process that writes journals has, as JournalFolder._join does: its mark, locked
 * before it has its name, its slots, its pool; on disk before the first journal. */
static int make_mark(struct fbc_workplace *place, const char *owner, const char *boot) {
    char nameless[64], slots[64], pool[64];
    struct stat tickets, namespace;
    int state = joined.state;
    snprintf(nameless, sizeof nameless, "owner-%s", owner);
    snprintf(slots, sizeof slots, "slots/%s", owner);
    snprintf(pool, sizeof pool, "pool/%s", owner);
    if (fstat(place->tickets, &tickets) != 0 || stat("/proc/self/ns/pid", &namespace) != 0)
        return FBC_FAILED;
    place->mark = fbc_access_open(state, nameless, O_RDWR | O_EXCL);
    if (place->mark < 0)
        return FBC_FAILED;
    int done = flock(place->mark, LOCK_EX | LOCK_NB) == 0 &&
               dprintf(place->mark, "%llu:%llu %d %llu %s\n", (unsigned long long)tickets.st_dev,
                       (unsigned long long)tickets.st_ino, (int)getpid(),
                       (unsigned long long)namespace.st_ino, boot) > 0 &&
               renameat(state, nameless, joined.owners, owner) == 0;
    if (!done) {
        unlinkat(state, nameless, 0);
        return FBC_FAILED;
    }
    FBC_FAILPOINT("join.marked");
    place->slots = fbc_access_open(state, slots, O_RDWR | O_EXCL);
    if (fbc_access_make_folder(state, pool) == 0)
        place->making = openat(state, pool, folder_flags);
    FBC_FAILPOINT("join.made");
    if (place->slots >= 0 && place->making >= 0 && fsync(joined.owners) == 0 &&
        sync_and_close(openat(state, "slots", folder_flags)) &&
        sync_and_close(openat(state, "pool", folder_flags)))
        return FBC_OK;
    unlinkat(state, pool, AT_REMOVEDIR);
    unlinkat(state, slots, 0);
    unlinkat(joined.owners, owner, 0);
    return FBC_FAILED;
}

static void close_all(const int *fds, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

/* Open what is in the folder, and map the page. */
static int open_place(const struct fbc_join *join, struct fbc_workplace *place) {
    struct stat status;
    static const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW;
    place->tickets = openat(joined.state, "tickets/page", flags);
    place->commits = openat(joined.state, "commits", flags);
    if (place->tickets < 0 || place->commits < 0 || fstat(place->tickets, &status) != 0 ||
        !is_at(&status, join->tickets_device, join->tickets_inode) ||
        status.st_size < FBC_SHARED_BYTES)
        return FBC_FAILED;
    place->page =
        mmap(NULL, FBC_SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, place->tickets, 0);
    if (place->page == MAP_FAILED)
        place->page = NULL;
    return place->page != NULL && !((struct fbc_shared_page *)place->page)->is_retired;
}

static int join_in(const struct fbc_join *join, struct fbc_workplace *place) {
    char owner[40], boot[40];
    joined.owners = openat(joined.state, "owners", folder_flags);
    joined.definitions = openat(joined.state, "definitions", folder_flags | O_NOFOLLOW);
    fbc_uuid_text(join->publisher, joined.publisher);
    if (joined.owners < 0 || !read_boot(boot, joined.boot) ||
        memcmp(joined.boot, join->boot, 16) != 0 ||
        flock(joined.definitions, LOCK_SH | LOCK_NB) != 0 || !open_place(join, place) ||
        !is_confirmed(place->page) || fbc_journal_name(owner, joined.owner) != 0 ||
        !make_mark(place, owner, boot))
        return FBC_FAILED;
    tell_record(joined.state, owner, join->record);
    place->owner = joined.owner;
    place->boot = joined.boot;
    place->is_synced = (int32_t)join->is_synced;
    place->is_gap_mode = (int32_t)join->is_gap_mode;
    place->transactions = join->transactions;
    place->memory_bytes = join->memory_bytes;
    return FBC_OK;
}

int fbc_join(const char *config, char *path, size_t path_size, struct fbc_workplace *place,
             uint64_t *most_bytes) {
    struct fbc_join join;
    *place = (struct fbc_workplace){.path = path,
                                    .journals = -1,
                                    .making = -1,
                                    .tickets = -1,
                                    .commits = -1,
                                    .slots = -1,
                                    .mark = -1};
    if (!fbc_policy_option(config, "connector.journal.directory", path, path_size) || *path != '/')
        return FBC_FAILED;
    place->journals = open(path, folder_flags);
    joined.state = place->journals < 0
                       ? -1
                       : openat(place->journals, ".firebird-cdc", folder_flags | O_NOFOLLOW);
    /* First: a shipper that ends takes this lock, and removes the file before it gives it back. */
    int bridge = joined.state < 0 ? -1 : lock_bridge(joined.state);
    if (bridge >= 0 && read_join(joined.state, &join) && holds(&join, config, place->journals) &&
        join_in(&join, place)) {
        *most_bytes = join.most_bytes;
        return FBC_OK;
    }
    if (place->page)
        munmap(place->page, FBC_SHARED_BYTES);
    close_all((int[]){bridge, place->journals, place->making, place->tickets, place->commits,
                      place->slots, place->mark, joined.state, joined.definitions, joined.owners},
              10);
    joined.state = joined.definitions = joined.owners = -1;
    return FBC_FAILED;
}

/* The page of counters, and the disk use of journals; see counters.h. */
#define _GNU_SOURCE
#include "counters.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "access.h"

enum {
    VERSION = 1,
    SLOTS = 31,
    COUNTERS = 16,
    HISTOGRAMS = 7,
    BUCKETS = 20,
    PATH_BYTES = 256,
    DISK_AT = 256,
    SLOTS_AT = 2048,
    SLOT_BYTES = 2048,
    LONGEST_NAME = 64 /* of a page, and what is added to it */
};

static const char magic[8] = "FBCDCCTR";
static const char file_name[] = ".firebird-cdc/counters";

struct histogram {
    _Atomic(uint64_t) buckets[BUCKETS], sum_ns;
};

struct fbc_tally {
    _Atomic(uint64_t) used;
    char path[PATH_BYTES];
    _Atomic(uint64_t) counters[COUNTERS];
    struct histogram histograms[HISTOGRAMS];
    char rest[SLOT_BYTES - 8 - PATH_BYTES - 8 * COUNTERS - sizeof(struct histogram) * HISTOGRAMS];
};

struct page {
    char magic[8];
    uint32_t version, slots, slot_bytes, counters, histograms, buckets;
    uint64_t bounds_ns[BUCKETS - 1];
    uint64_t made_us;
    char before_disk[DISK_AT - 32 - 8 * BUCKETS];
    struct fbc_disk_figures disk;
    char before_slots[SLOTS_AT - DISK_AT - sizeof(struct fbc_disk_figures)];
    struct fbc_tally tallies[SLOTS];
};

_Static_assert(offsetof(struct page, disk) == DISK_AT, "layout");
_Static_assert(offsetof(struct page, tallies) == SLOTS_AT, "layout");
_Static_assert(sizeof(struct page) == 65536, "layout");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "atomics that work between processes");

#define MS(n) ((uint64_t)(n) * 1000000)

/* Its first part is the same in every file of this version. */
static const struct page fresh = {
    .version = VERSION,
    .slots = SLOTS,
    .slot_bytes = SLOT_BYTES,
    .counters = COUNTERS,
    .histograms = HISTOGRAMS,
    .buckets = BUCKETS,
    .bounds_ns = {1000, 2500, 5000, 10000, 25000, 50000, 100000, 250000, 500000, MS(1), 2500000,
                  MS(5), MS(10), MS(25), MS(50), MS(100), MS(500), MS(1000), MS(10000)},
};

static struct {
    pthread_mutex_t lock; /* with flock on the file: who gives away slots */
    _Atomic(struct page *) page;
    int fd; /* of the file; -1: the page is this process's alone */
    dev_t device;
    ino_t inode;
    _Atomic(uint64_t) limit;
} counters = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

static uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* Take the lock of the file FD, waiting for a moment only: its holder may have been stopped. */
static int lock_file(int fd) {
    enum { TRIES = 50, PAUSE_NS = 1000000 };
    for (int i = 0; fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0; i++) {
        if (i == TRIES || (errno != EWOULDBLOCK && errno != EINTR))
            return 0;
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
    return 1;
}

static int has_layout(const struct page *page) {
    return memcmp(page->magic, magic, sizeof magic) == 0 &&
           memcmp(&page->version, &fresh.version,
                  offsetof(struct page, made_us) - offsetof(struct page, version)) == 0;
}

/* Make the page NAME in one step, so that nobody ever finds a part of it, which would look like
 * damage; written as a whole, so that no fault of the mapping finds a full disk. */
static int make_file(int directory, const char *name, mode_t mode) {
    char part[LONGEST_NAME];
    struct page page = fresh;
    memcpy(page.magic, magic, sizeof magic);
    page.made_us = now_us();
    snprintf(part, sizeof part, "%s.part", name);
    unlinkat(directory, part, 0); /* of a process that was killed */
    int fd = openat(directory, part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd < 0)
        return 0;
    fbc_access_share(directory, fd);
    int done = write(fd, &page, sizeof page) == (ssize_t)sizeof page &&
               renameat(directory, part, directory, name) == 0;
    int reason = errno;
    if (!done)
        unlinkat(directory, part, 0);
    close(fd);
    errno = reason;
    return done;
}

/* What the page NAME has counted is not known any more: leave it where somebody is told of it. */
static void set_aside(int directory, const char *name) {
    char kept[LONGEST_NAME];
    snprintf(kept, sizeof kept, "%s.damaged", name);
    renameat(directory, name, directory, kept);
}

/* Have room on disk for all of the file, which a copy may lack: a fault of the mapping would kill
 * the server where the disk is full. */
static int has_its_room(int fd) {
    return fallocate(fd, 0, 0, sizeof(struct page)) == 0 || errno == EOPNOTSUPP;
}

/* Open the file NAME in the folder DIRECTORY, made anew if it is not one of this layout. Another
 * process may have the old one mapped: it stays as it is, with another name. -1: that can't be
 * done.
 */
static int open_file(int directory, const char *name, mode_t mode) {
    enum { ATTEMPTS = 5 }; /* to set it aside, to make it, to open it, and for two who meet */
    for (int i = 0; i < ATTEMPTS; i++) {
        struct stat opened, named;
        char head[offsetof(struct page, made_us)];
        int fd = openat(directory, name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, mode);
        if (fd < 0)
            return -1;
        fbc_access_share(directory, fd);
        int is_locked = lock_file(fd);
        int is_named = fstat(fd, &opened) == 0 && S_ISREG(opened.st_mode) &&
                       fstatat(directory, name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
                       opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
        int is_good = is_named && opened.st_size == (off_t)sizeof(struct page) &&
                      pread(fd, head, sizeof head, 0) == (ssize_t)sizeof head &&
                      has_layout((const struct page *)head);
        if (is_good && has_its_room(fd)) {
            flock(fd, LOCK_UN);
            return fd;
        }
        int is_made = 1;
        if (is_named && is_locked && !is_good) {
            if (opened.st_size == 0)
                is_made = make_file(directory, name, mode);
            else
                set_aside(directory, name);
        }
        int reason = errno;
        close(fd);
        errno = reason;
        if (!is_made)
            return -1;
    }
    return -1;
}

static struct page *map(int fd) {
    int flags = fd >= 0 ? MAP_SHARED | MAP_POPULATE : MAP_PRIVATE | MAP_ANONYMOUS;
    void *page = mmap(NULL, sizeof(struct page), PROT_READ | PROT_WRITE, flags, fd, 0);
    if (page == MAP_FAILED)
        return NULL;
    mlock(page, sizeof(struct page)); /* in memory to stay, if we may: no fault meets a bad disk */
    return page;
}

void fbc_counters_use(int directory) {
    struct stat status = {0};
    pthread_mutex_lock(&counters.lock);
    int fd = open_file(directory, file_name, 0600);
    if (fd >= 0)
        fstat(fd, &status);
    int is_same = fd >= 0 && counters.fd >= 0 && status.st_dev == counters.device &&
                  status.st_ino == counters.inode;
    if (counters.page && (is_same || (fd < 0 && counters.fd < 0))) {
        if (fd >= 0)
            close(fd);
        pthread_mutex_unlock(&counters.lock);
        return;
    }
    struct page *page = map(fd);
    if (page) { /* the former one stays mapped: somebody may be counting in it */
        if (counters.fd >= 0)
            close(counters.fd);
        counters.fd = fd;
        counters.device = status.st_dev;
        counters.inode = status.st_ino;
        atomic_store(&counters.page, page);
    } else if (fd >= 0)
        close(fd);
    pthread_mutex_unlock(&counters.lock);
}

static struct fbc_tally *find(struct page *page, const char *path) {
    for (unsigned i = 1; i < SLOTS; i++)
        if (atomic_load_explicit(&page->tallies[i].used, memory_order_acquire) &&
            strncmp(page->tallies[i].path, path, PATH_BYTES - 1) == 0) /* longer ones are cut */
            return &page->tallies[i];
    return NULL;
}

/* Give PATH a slot of PAGE, which is locked; null: none is free. */
static struct fbc_tally *find_or_add(struct page *page, const char *path) {
    struct fbc_tally *tally = find(page, path);
    for (unsigned i = 1; !tally && i < SLOTS; i++)
        if (!page->tallies[i].used) {
            tally = &page->tallies[i];
            strncpy(tally->path, path, PATH_BYTES - 1);
            atomic_store_explicit(&tally->used, 1, memory_order_release);
        }
    return tally;
}

/* Give PATH a slot; the first one of all if none is free. */
static struct fbc_tally *allot(struct page *page, const char *path) {
    pthread_mutex_lock(&counters.lock);
    int is_locked = lock_file(counters.fd);
    struct fbc_tally *tally = is_locked ? find_or_add(page, path) : find(page, path);
    if (counters.fd >= 0 && is_locked)
        flock(counters.fd, LOCK_UN);
    pthread_mutex_unlock(&counters.lock);
    return tally ? tally : &page->tallies[0];
}

struct fbc_tally *fbc_counters_of(const char *path, struct fbc_tally *cached) {
    struct page *page = atomic_load_explicit(&counters.page, memory_order_acquire);
    if (!page || (cached >= page->tallies && cached < page->tallies + SLOTS))
        return page ? cached : NULL;
    if (!*path)
        return &page->tallies[0];
    struct fbc_tally *tally = find(page, path);
    return tally ? tally : allot(page, path);
}

static void add(_Atomic(uint64_t) *to, uint64_t by) {
    atomic_fetch_add_explicit(to, by, memory_order_relaxed);
}

void fbc_count(struct fbc_tally *tally, enum fbc_counter counter, uint64_t by) {
    if (tally)
        add(&tally->counters[counter], by);
}

void fbc_observe(struct fbc_tally *tally, enum fbc_timing timing, uint64_t nanoseconds) {
    unsigned bucket = 0;
    if (!tally)
        return;
    while (bucket < BUCKETS - 1 && nanoseconds > fresh.bounds_ns[bucket])
        bucket++;
    add(&tally->histograms[timing].buckets[bucket], 1);
    add(&tally->histograms[timing].sum_ns, nanoseconds);
}

/* ---- What was refused or lost -------------------------------------------------------------- */

int fbc_counters_in_place(const char *path) {
    char file[PATH_MAX];
    struct stat named;
    pthread_mutex_lock(&counters.lock);
    int has_file = counters.fd >= 0;
    dev_t device = counters.device;
    ino_t inode = counters.inode;
    pthread_mutex_unlock(&counters.lock);
    return has_file &&
           (size_t)snprintf(file, sizeof file, "%s/%s", path, file_name) < sizeof file &&
           lstat(file, &named) == 0 && named.st_dev == device && named.st_ino == inode;
}

void fbc_count_failure(struct fbc_tally *tally, enum fbc_counter kind) {
    unsigned first = kind == FBC_GAPS ? FBC_GAPS_FIRST_US : FBC_REFUSED_FIRST_US, last = first + 1;
    uint64_t never = 0, now = now_us();
    if (!tally)
        return;
    add(&tally->counters[kind], 1);
    atomic_compare_exchange_strong(&tally->counters[first], &never, now);
    atomic_store_explicit(&tally->counters[last], now, memory_order_relaxed);
}

/* Write LENGTH bytes of the page of FD that begin at FROM. */
static int write_back(int fd, const struct page *page, const void *from, size_t length) {
    return pwrite(fd, from, length, (const char *)from - (const char *)page) == (ssize_t)length;
}

/* Count in the file FD, which is locked. errno says why that can't be done. */
static int count_in_file(int fd, const char *config, const char *path, enum fbc_counter kind) {
    struct page *page = malloc(sizeof *page);
    int is_read = page && pread(fd, page, sizeof *page, 0) == (ssize_t)sizeof *page;
    int is_written = 0;
    if (is_read) {
        struct fbc_tally *none = &page->tallies[0], *tally = *path ? find_or_add(page, path) : none;
        if (!tally)
            tally = none;
        fbc_count_failure(tally, kind);
        is_written = write_back(fd, page, tally, sizeof *tally);
        if (is_written && strncmp(none->path, config, PATH_BYTES - 1) != 0) {
            strncpy(none->path, config, PATH_BYTES - 1);
            is_written = write_back(fd, page, none->path, PATH_BYTES);
        }
    }
    free(page);
    return is_written;
}

static uint64_t digest_of(const char *text) {
    uint64_t digest = 14695981039346656037u; /* FNV-1a, 64 bits */
    for (; *text; text++)
        digest = (digest ^ (unsigned char)*text) * 1099511628211u;
    return digest;
}

int fbc_count_failure_in(const char *state, const char *config, const char *path,
                         enum fbc_counter kind, struct fbc_error *error) {
    char name[40];
    snprintf(name, sizeof name, "%016llx.counters", (unsigned long long)digest_of(config));
    int directory = open(state, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int fd = directory >= 0 ? open_file(directory, name, 0640) : -1;
    int done = fd >= 0 && lock_file(fd);
    if (done) {
        done = count_in_file(fd, config, path, kind);
        int reason = errno;
        flock(fd, LOCK_UN);
        errno = reason;
    }
    /* Of a refusal the application knows, too; of a loss this is all that is left. */
    if (done && kind == FBC_GAPS)
        done = fdatasync(fd) == 0 && fsync(directory) == 0;
    if (!done)
        fbc_error_set(error, errno, "cannot count in StateDirectory %.300s", state);
    if (fd >= 0)
        close(fd);
    if (directory >= 0)
        close(directory);
    return done;
}

/* ---- Disk use of journals that wait -------------------------------------------------------- */

static uint64_t now_ms(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static int64_t in_blocks(int64_t bytes) {
    return (bytes + FBC_FILE_BLOCK - 1) / FBC_FILE_BLOCK * FBC_FILE_BLOCK;
}

static int64_t figure_of(struct fbc_disk_figures *disk) {
    int64_t figure = disk->offset + disk->grown;
    return figure > 0 ? figure : 0;
}

static DIR *open_folder(int at, const char *name) {
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    if (!folder && fd >= 0)
        close(fd);
    return folder;
}

static int is_journal(const char *name) {
    size_t length = strlen(name);
    return (length > 4 && strcmp(name + length - 4, ".log") == 0) ||
           (length > 9 && strcmp(name + length - 9, ".log.live") == 0);
}

static int64_t bytes_of_journals(int folder) {
    DIR *found = open_folder(folder, ".");
    int64_t bytes = 0;
    struct stat status;
    for (struct dirent *entry; found && (entry = readdir(found));)
        if (is_journal(entry->d_name) &&
            fstatat(folder, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) == 0)
            bytes += in_blocks(status.st_size);
    if (found)
        closedir(found);
    return bytes;
}

static struct fbc_disk_figures *figures(void) {
    struct page *page = atomic_load_explicit(&counters.page, memory_order_acquire);
    return page ? &page->disk : NULL;
}

static uint64_t resumed_at(uint64_t limit) {
    return limit - limit / 10;
}

static void measure(struct fbc_disk_figures *disk, int folder) {
    int64_t before = disk->grown;
    uint64_t since = now_ms(CLOCK_MONOTONIC);
    disk->offset = bytes_of_journals(folder) - before;
    disk->cost_ms = now_ms(CLOCK_MONOTONIC) - since;
    disk->at_ms = now_ms(CLOCK_REALTIME);
    disk->limit = counters.limit;
    if (disk->full && (uint64_t)figure_of(disk) <= resumed_at(counters.limit))
        disk->full = 0;
    if (!counters.limit)
        disk->full = 0;
}

static int is_older(const struct fbc_disk_figures *disk, uint64_t most_ms) {
    uint64_t now = now_ms(CLOCK_REALTIME), at = disk->at_ms;
    return now < at || now - at > most_ms;
}

void fbc_disk_limit(uint64_t most) {
    counters.limit = most;
}

uint64_t fbc_disk_most(void) {
    return counters.limit;
}

void fbc_disk_grow(int64_t bytes) {
    struct fbc_disk_figures *disk = figures();
    if (disk)
        atomic_fetch_add_explicit(&disk->grown, bytes, memory_order_relaxed);
}

int fbc_disk_has_room(int folder, const char *path, uint64_t own, struct fbc_error *error) {
    enum { MEASURED_JUST_NOW_MS = 100, COST_FACTOR = 10 };
    static pthread_mutex_t measuring = PTHREAD_MUTEX_INITIALIZER;
    struct fbc_disk_figures *disk = figures();
    uint64_t limit = atomic_load_explicit(&counters.limit, memory_order_relaxed);
    if (!limit || !disk)
        return FBC_OK;
    for (int is_measured = 0;; is_measured = 1) {
        uint64_t most = disk->full ? resumed_at(limit) : limit;
        uint64_t taken = (uint64_t)figure_of(disk);
        if (taken <= most) {
            if (disk->full)
                disk->full = 0;
            return FBC_OK;
        }
        if (is_measured || !is_older(disk, MEASURED_JUST_NOW_MS + COST_FACTOR * disk->cost_ms)) {
            if (taken > resumed_at(limit) + own)
                disk->full = 1;
            add(&disk->refused, 1);
            fbc_error_set(
                error, 0,
                "the journals in %.160s take %llu bytes, %llu of them this transaction's, and "
                "connector.journal.max.bytes is %llu: have the shipper send them (firebird-cdc "
                "status tells why it does not) until usage falls below %llu bytes, or "
                "raise the limit",
                path, (unsigned long long)taken, (unsigned long long)own, (unsigned long long)limit,
                (unsigned long long)resumed_at(limit));
            return FBC_FAILED;
        }
        pthread_mutex_lock(&measuring);
        if (is_older(disk, MEASURED_JUST_NOW_MS)) /* else one did that others waited for */
            measure(disk, folder);
        pthread_mutex_unlock(&measuring);
    }
}

void fbc_disk_measure(int folder, uint32_t if_older_ms, struct fbc_disk *to) {
    struct fbc_disk_figures *disk = figures();
    memset(to, 0, sizeof *to);
    if (!disk)
        return;
    if (is_older(disk, if_older_ms))
        measure(disk, folder);
    to->bytes = (uint64_t)figure_of(disk);
    to->is_full = (uint32_t)disk->full;
    to->cost_ms = (uint32_t)disk->cost_ms;
    to->refused = disk->refused;
}

/* A preload that records what a process does to the files below one folder, in one order for all
 * processes: writes with their bytes, sizes, names, and what was synced when. power_disk.py makes
 * from it the disks that a power cut could have left.
 *
 * Nothing is really synced: a sync takes a random time instead (about POWER_SYNC_US), so that
 * what others do meanwhile is as it is beside a disk. Whatever only changes the page cache is
 * done and recorded under one lock, so the record's order is the order in which it happened. A
 * sync leaves two records: it covers what stands before the first, from the second on. So does
 * a write through a descriptor opened with O_SYNC or O_DSYNC, which covers its own bytes.
 *
 * Environment: POWER_ROOT   the folder, absolute, without links in its path
 *              POWER_LOG    the record (appended to); if missing, syncs are skipped and that is all
 *              POWER_VICTIM a file of 4 bytes: the process whose id is in it kills itself right
 *                           after a record, so that no recorded operation is half done
 *              POWER_TIP_SLOW  how many times as long the synchronous write of a transaction
 *                           inventory page takes
 *
 * What it can't follow (a stream, a temporary name, a copy within the kernel) ends the process
 * when it concerns the folder: see `give_up`.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum kind {
    CREATE = 1, /* ino; path */
    MKDIR,      /* ino; path */
    WRITE,      /* ino, offset; bytes. pair: not 0 if the descriptor is synchronous */
    RESIZE,     /* ino, offset: the new size */
    RENAME,     /* ino; old path, zero, new path */
    LINK,       /* ino; path */
    UNLINK,     /* ino; path */
    RMDIR,      /* ino; path */
    SYNC_BEGIN, /* ino (0: everything), pair, extra: 1 data only */
    SYNC_END,   /* the same */
    WRITTEN,    /* ino, pair: of the synchronous write that has returned */
    NOTE,       /* text */
    MAPPED,     /* as WRITE: what was changed through a shared mapping */
    SYNC_FAILED /* ino (0: everything): what was to be written is lost, and counts as written */
};

struct record {
    uint32_t length; /* of what follows this header */
    uint16_t kind, extra;
    int32_t process;
    uint32_t pair; /* with process: a number that joins beginning and end */
    uint64_t inode, offset;
};

enum { DESCRIPTORS = 65536, MAPPINGS = 16, MAPPING_BYTES = 4096, MOST_PARTS = 16 };
enum { COUNTERS_BYTES = 65536, SLOTS_BYTES = 32 * 1024 * 1024 };
enum { INVENTORY_PAGE = 3, LEAST_PAGE = 4096 }; /* only the database is written so */
enum { UNKNOWN, FOREIGN, TRACED, TRACED_SYNC }; /* of a descriptor */

static char root[PATH_MAX];
static size_t root_length;
static int log_fd = -1;
static long sync_us = 300, inventory_slowness = 1;
static volatile int32_t *victim;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static volatile char descriptors[DESCRIPTORS];
static _Atomic(uint32_t) pairs;

static struct mapping {
    char *at;
    size_t length;
    uint64_t inode;
    char known[MAPPING_BYTES];
} mappings[MAPPINGS];

#define REAL(result, name, ...) ((result(*)(__VA_ARGS__))real(#name))

static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) {
        fprintf(stderr, "power_recorder: libc has no %s\n", name);
        abort();
    }
    return found;
}

static void give_up(const char *what, const char *path) {
    fprintf(stderr, "power_recorder: can't follow %s on %s\n", what, path);
    abort();
}

__attribute__((constructor)) static void start(void) {
    const char *folder = getenv("POWER_ROOT"), *log = getenv("POWER_LOG");
    const char *control = getenv("POWER_VICTIM"), *delay = getenv("POWER_SYNC_US");
    if (!folder)
        return;
    root_length = (size_t)snprintf(root, sizeof root, "%s", folder);
    if (delay)
        sync_us = atol(delay);
    const char *slowness = getenv("POWER_TIP_SLOW");
    if (slowness)
        inventory_slowness = atol(slowness);
    if (!log)
        return;
    int fd = REAL(int, open, const char *, int, ...)(log, O_WRONLY | O_APPEND | O_CLOEXEC);
    log_fd = REAL(int, fcntl, int, int, ...)(fd, F_DUPFD_CLOEXEC, 900);
    REAL(int, close, int)(fd);
    if (control) {
        fd = REAL(int, open, const char *, int, ...)(control, O_RDONLY | O_CLOEXEC);
        victim = REAL(void *, mmap, void *, size_t, int, int, int, off_t)(NULL, 4096, PROT_READ,
                                                                          MAP_SHARED, fd, 0);
        REAL(int, close, int)(fd);
    }
    if (log_fd < 0 || victim == MAP_FAILED)
        give_up("its own files", log);
}

/* ---- Whose is it? ------------------------------------------------------------------------- */

static int is_below(const char *path) {
    return root_length && strncmp(path, root, root_length) == 0 &&
           (path[root_length] == '/' || path[root_length] == 0);
}

static int path_of_descriptor(int fd, char path[PATH_MAX]) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length < 0 ? 0 : length] = 0;
    return length > 0;
}

/* The absolute form of a path below the folder; 0 if it leads elsewhere. */
static int resolve(int directory, const char *path, char full[PATH_MAX]) {
    char base[PATH_MAX] = "";
    if (!root_length)
        return 0;
    if (path[0] != '/') {
        if (directory == AT_FDCWD ? !getcwd(base, sizeof base)
                                  : !path_of_descriptor(directory, base))
            return 0;
        if (!is_below(base))
            return 0;
    }
    int length = snprintf(full, PATH_MAX, "%s%s%s", base, base[0] ? "/" : "", path);
    if (length < 0 || length >= PATH_MAX || !is_below(full))
        return 0;
    if (strstr(full, "/../") || strstr(full, "/./") || strstr(full, "//"))
        give_up("a path that is not plain", full);
    while (length > 1 && full[length - 1] == '/')
        full[--length] = 0;
    return 1;
}

static void know(int fd, int what) {
    if (fd >= 0 && fd < DESCRIPTORS)
        descriptors[fd] = (char)what;
}

static int state_of(int fd) {
    if (!root_length || fd < 0 || fd >= DESCRIPTORS)
        return FOREIGN;
    if (descriptors[fd] == UNKNOWN) {
        char path[PATH_MAX];
        know(fd, path_of_descriptor(fd, path) && is_below(path) ? TRACED : FOREIGN);
    }
    return descriptors[fd];
}

/* Whether operations on this are to be recorded. */
static int is_traced(int fd) {
    int saved = errno;
    int traced = log_fd >= 0 && state_of(fd) >= TRACED;
    errno = saved;
    return traced;
}

static uint64_t inode_of(int fd) {
    struct stat status = {0};
    fstat(fd, &status);
    return status.st_ino;
}

static uint64_t inode_at(const char *path) {
    struct stat status = {0};
    return lstat(path, &status) == 0 ? status.st_ino : 0;
}

/* ---- The record --------------------------------------------------------------------------- */

/* A process that ends in peace stops its threads anywhere. From here on only the one that ends it
 * gets through, and no other is between an operation and its record. */
static pthread_t last_thread;
static int is_ending;

static int is_last_thread(void) {
    return is_ending && pthread_equal(last_thread, pthread_self());
}

__attribute__((destructor)) static void end(void) {
    pthread_mutex_lock(&mutex);
    last_thread = pthread_self();
    is_ending = 1;
}

static void lock(void) {
    if (!is_last_thread())
        pthread_mutex_lock(&mutex);
    while (flock(log_fd, LOCK_EX) != 0)
        if (errno != EINTR)
            give_up("the lock of", "its record");
}

static void put(struct record head, const struct iovec *content, int parts, size_t length) {
    head.length = (uint32_t)length;
    head.process = getpid();
    struct iovec all[MOST_PARTS + 1] = {{&head, sizeof head}};
    int count = 1;
    size_t left = length;
    for (int i = 0; i < parts && left; i++) {
        if (count > MOST_PARTS)
            give_up("so many parts in a write", "a file");
        size_t taken = content[i].iov_len < left ? content[i].iov_len : left;
        all[count++] = (struct iovec){content[i].iov_base, taken};
        left -= taken;
    }
    ssize_t written = REAL(ssize_t, writev, int, const struct iovec *, int)(log_fd, all, count);
    if (written != (ssize_t)(sizeof head + length))
        give_up("with a full disk", "its record");
}

/* What changed since in shared mappings; they are small and few. */
static void put_mapped(void) {
    for (struct mapping *each = mappings; each < mappings + MAPPINGS; each++) {
        if (!each->at || memcmp(each->at, each->known, each->length) == 0)
            continue;
        memcpy(each->known, each->at, each->length);
        struct iovec part = {each->known, each->length};
        put((struct record){.kind = MAPPED, .inode = each->inode}, &part, 1, each->length);
    }
}

static void record(struct record head, const struct iovec *content, int parts, size_t length) {
    int saved = errno;
    put_mapped();
    put(head, content, parts, length);
    errno = saved;
}

static void record_size(uint64_t inode, off_t size) {
    record((struct record){.kind = RESIZE, .inode = inode, .offset = (uint64_t)size}, NULL, 0, 0);
}

static void record_path(enum kind kind, uint64_t inode, const char *path) {
    struct iovec part = {(void *)path, strlen(path)};
    record((struct record){.kind = (uint16_t)kind, .inode = inode}, &part, 1, part.iov_len);
}

static void unlock(void) {
    int saved = errno;
    if (victim && *victim == getpid())
        kill(getpid(), SIGKILL);
    flock(log_fd, LOCK_UN);
    if (!is_last_thread())
        pthread_mutex_unlock(&mutex);
    errno = saved;
}

static void take_time(long slowness) {
    unsigned chance = 0;
    if (getrandom(&chance, sizeof chance, 0) != (ssize_t)sizeof chance)
        give_up("without", "random bytes");
    long us = sync_us / 2 + (long)(chance % (unsigned)(sync_us + 1));
    if (chance % 37 == 0)
        us *= 8;
    us *= slowness;
    struct timespec pause = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&pause, NULL);
}

/* A sync as it would be: begin, wait, end. INODE 0: of everything. */
static void sync_inode(uint64_t inode, int data_only) {
    struct record head = {
        .kind = SYNC_BEGIN, .extra = (uint16_t)data_only, .pair = ++pairs, .inode = inode};
    int saved = errno;
    lock();
    record(head, NULL, 0, 0);
    unlock();
    take_time(1);
    head.kind = SYNC_END;
    lock();
    record(head, NULL, 0, 0);
    unlock();
    errno = saved;
}

/* Something the program under test did that the record should tell. */
void power_note(const char *text) {
    if (log_fd < 0)
        return;
    lock();
    record_path(NOTE, 0, text);
    unlock();
}

/* ---- Descriptors -------------------------------------------------------------------------- */

static int open_traced(int directory, const char *path, int flags, mode_t mode) {
    int (*openat_)(int, const char *, int, ...) = REAL(int, openat, int, const char *, int, ...);
    char full[PATH_MAX];
    int below = resolve(directory, path, full);
    int synced = below && (flags & O_DSYNC); /* O_SYNC has this bit too */
    if (below)
        flags &= ~O_SYNC;
    if (below && (flags & O_TMPFILE) == O_TMPFILE)
        give_up("a file without a name", full);
    if (!below || log_fd < 0 || !(flags & (O_CREAT | O_TRUNC))) {
        int fd = openat_(directory, path, flags, mode);
        know(fd, !below ? FOREIGN : synced ? TRACED_SYNC : TRACED);
        return fd;
    }
    lock();
    int is_new = inode_at(full) == 0;
    int fd = openat_(directory, path, flags, mode);
    if (fd >= 0) {
        know(fd, synced ? TRACED_SYNC : TRACED);
        if (is_new)
            record_path(CREATE, inode_of(fd), full);
        else if (flags & O_TRUNC)
            record_size(inode_of(fd), 0);
    }
    unlock();
    return fd;
}

#define MODE_OF(flags)                                                                             \
    mode_t mode = 0;                                                                               \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {                                                       \
        va_list arguments;                                                                         \
        va_start(arguments, flags);                                                                \
        mode = va_arg(arguments, mode_t);                                                          \
        va_end(arguments);                                                                         \
    }

int open(const char *path, int flags, ...) {
    MODE_OF(flags)
    return open_traced(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    MODE_OF(flags)
    return open_traced(AT_FDCWD, path, flags | O_LARGEFILE, mode);
}

int openat(int directory, const char *path, int flags, ...) {
    MODE_OF(flags)
    return open_traced(directory, path, flags, mode);
}

int openat64(int directory, const char *path, int flags, ...) {
    MODE_OF(flags)
    return open_traced(directory, path, flags | O_LARGEFILE, mode);
}

int creat(const char *path, mode_t mode) {
    return open_traced(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

int creat64(const char *path, mode_t mode) {
    return creat(path, mode);
}

/* what fortified programs call */
int __open_2(const char *path, int flags);
int __open_2(const char *path, int flags) {
    return open_traced(AT_FDCWD, path, flags, 0);
}

int __open64_2(const char *path, int flags);
int __open64_2(const char *path, int flags) {
    return open_traced(AT_FDCWD, path, flags, 0);
}

int __openat_2(int directory, const char *path, int flags);
int __openat_2(int directory, const char *path, int flags) {
    return open_traced(directory, path, flags, 0);
}

int __openat64_2(int directory, const char *path, int flags);
int __openat64_2(int directory, const char *path, int flags) {
    return open_traced(directory, path, flags, 0);
}

int close(int fd) {
    know(fd, UNKNOWN);
    return REAL(int, close, int)(fd);
}

static int copied(int from, int to) {
    if (to >= 0)
        know(to, from >= 0 && from < DESCRIPTORS ? descriptors[from] : FOREIGN);
    return to;
}

int dup(int fd) {
    return copied(fd, REAL(int, dup, int)(fd));
}

int dup2(int fd, int to) {
    return copied(fd, REAL(int, dup2, int, int)(fd, to));
}

int dup3(int fd, int to, int flags) {
    return copied(fd, REAL(int, dup3, int, int, int)(fd, to, flags));
}

static int control(int fd, int command, void *argument) {
    int result = REAL(int, fcntl64, int, int, ...)(fd, command, argument);
    return command == F_DUPFD || command == F_DUPFD_CLOEXEC ? copied(fd, result) : result;
}

#define ARGUMENT_OF(last)                                                                          \
    va_list arguments;                                                                             \
    va_start(arguments, last);                                                                     \
    void *argument = va_arg(arguments, void *);                                                    \
    va_end(arguments);

int fcntl(int fd, int command, ...) {
    ARGUMENT_OF(command)
    return control(fd, command, argument);
}

int fcntl64(int fd, int command, ...) {
    ARGUMENT_OF(command)
    return control(fd, command, argument);
}

/* ---- Content ------------------------------------------------------------------------------ */

static ssize_t write_traced(int fd, const struct iovec *parts, int count, off_t offset) {
    ssize_t written;
    int at_position = offset < 0;
    if (!is_traced(fd))
        return at_position ? REAL(ssize_t, writev, int, const struct iovec *, int)(fd, parts, count)
                           : REAL(ssize_t, pwritev, int, const struct iovec *, int,
                                  off_t)(fd, parts, count, offset);
    lock();
    if (at_position) {
        written = REAL(ssize_t, writev, int, const struct iovec *, int)(fd, parts, count);
        offset = lseek(fd, 0, SEEK_CUR) - written;
    } else
        written =
            REAL(ssize_t, pwritev, int, const struct iovec *, int, off_t)(fd, parts, count, offset);
    struct record head = {.kind = WRITE, .inode = inode_of(fd), .offset = (uint64_t)offset};
    if (descriptors[fd] == TRACED_SYNC)
        head.pair = ++pairs;
    if (written > 0)
        record(head, parts, count, (size_t)written);
    unlock();
    if (written > 0 && head.pair) {
        const unsigned char *content = parts[0].iov_base;
        int is_inventory = parts[0].iov_len >= LEAST_PAGE && content[0] == INVENTORY_PAGE;
        take_time(is_inventory ? inventory_slowness : 1);
        head.kind = WRITTEN;
        lock();
        record(head, NULL, 0, 0);
        unlock();
    }
    return written;
}

ssize_t write(int fd, const void *bytes, size_t length) {
    if (!is_traced(fd))
        return REAL(ssize_t, write, int, const void *, size_t)(fd, bytes, length);
    return write_traced(fd, &(struct iovec){(void *)bytes, length}, 1, -1);
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset) {
    return write_traced(fd, &(struct iovec){(void *)bytes, length}, 1, offset);
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t offset) {
    return write_traced(fd, &(struct iovec){(void *)bytes, length}, 1, offset);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    return write_traced(fd, parts, count, -1);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) {
    return write_traced(fd, parts, count, offset);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset) {
    return write_traced(fd, parts, count, offset);
}

ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    if (flags && is_traced(fd))
        give_up("a write with flags", "a file");
    return write_traced(fd, parts, count, offset);
}

ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t offset, int flags) {
    return pwritev2(fd, parts, count, offset, flags);
}

/* These write by themselves: no call of `write` can be seen. */
int vdprintf(int fd, const char *format, va_list arguments) {
    char *text = NULL;
    if (!is_traced(fd))
        return REAL(int, vdprintf, int, const char *, va_list)(fd, format, arguments);
    int length = vasprintf(&text, format, arguments);
    if (length < 0)
        return -1;
    ssize_t written = write_traced(fd, &(struct iovec){text, (size_t)length}, 1, -1);
    int saved = errno;
    free(text);
    errno = saved;
    return written == length ? length : -1;
}

int dprintf(int fd, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = vdprintf(fd, format, arguments);
    va_end(arguments);
    return length;
}

/* what fortified programs call */
int __vdprintf_chk(int fd, int flag, const char *format, va_list arguments);
int __vdprintf_chk(int fd, int flag, const char *format, va_list arguments) {
    (void)flag;
    return vdprintf(fd, format, arguments);
}

int __dprintf_chk(int fd, int flag, const char *format, ...);
int __dprintf_chk(int fd, int flag, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = __vdprintf_chk(fd, flag, format, arguments);
    va_end(arguments);
    return length;
}

static int resize(int fd, off_t size) {
    int (*truncate_)(int, off_t) = REAL(int, ftruncate, int, off_t);
    if (!is_traced(fd))
        return truncate_(fd, size);
    lock();
    int result = truncate_(fd, size);
    if (result == 0)
        record_size(inode_of(fd), size);
    unlock();
    return result;
}

int ftruncate(int fd, off_t size) {
    return resize(fd, size);
}

int ftruncate64(int fd, off64_t size) {
    return resize(fd, size);
}

int truncate(const char *path, off_t size) {
    char full[PATH_MAX];
    if (resolve(AT_FDCWD, path, full))
        give_up("truncate", full);
    return REAL(int, truncate, const char *, off_t)(path, size);
}

int truncate64(const char *path, off64_t size) {
    return truncate(path, size);
}

static int allocate(int fd, int mode, off_t offset, off_t length) {
    int (*fallocate_)(int, int, off_t, off_t) = REAL(int, fallocate, int, int, off_t, off_t);
    struct stat status;
    if (!is_traced(fd))
        return fallocate_(fd, mode, offset, length);
    if (mode & ~FALLOC_FL_KEEP_SIZE)
        give_up("holes", "a file");
    lock();
    int result = fallocate_(fd, mode, offset, length);
    if (result == 0 && fstat(fd, &status) == 0)
        record_size(status.st_ino, status.st_size);
    unlock();
    return result;
}

int fallocate(int fd, int mode, off_t offset, off_t length) {
    return allocate(fd, mode, offset, length);
}

int fallocate64(int fd, int mode, off64_t offset, off64_t length) {
    return allocate(fd, mode, offset, length);
}

int posix_fallocate(int fd, off_t offset, off_t length) {
    int saved = errno;
    int error = allocate(fd, 0, offset, length) == 0 ? 0 : errno;
    errno = saved;
    return error;
}

int posix_fallocate64(int fd, off64_t offset, off64_t length) {
    return posix_fallocate(fd, offset, length);
}

/* ---- Syncs -------------------------------------------------------------------------------- */

static int sync_descriptor(int fd, int data_only) {
    if (is_traced(fd)) {
        sync_inode(inode_of(fd), data_only);
        return 0;
    }
    if (state_of(fd) >= TRACED) /* nothing is recorded: nobody is going to cut the power */
        return 0;
    return data_only ? REAL(int, fdatasync, int)(fd) : REAL(int, fsync, int)(fd);
}

/* Called before each sync and each write, by wrappers that a test puts around them (failing_calls.h,
 * sync_calls.py): CALL names the place; FD is -1 for a write, of which nothing is done where it
 * fails. Returns whether it is to fail, with errno set.
 *
 * Environment: POWER_REACHED the places, one a line (appended to)
 *              POWER_FAILS   the place whose sync or write fails
 *              POWER_ERRNO   with which error; if missing, EIO
 *              POWER_HIT     at which coming to it in a process; if missing, at the first
 *              POWER_TIMES   how often in a row; if missing, once
 *              POWER_FAILED  a file that grows by a byte each time; from then on all work
 */
int power_fails(const char *call, int fd, int is_all) {
    static _Atomic(int) hits;
    const char *reached = getenv("POWER_REACHED"), *fails = getenv("POWER_FAILS");
    const char *hit = getenv("POWER_HIT"), *number = getenv("POWER_ERRNO");
    int (*open_)(const char *, int, ...) = REAL(int, open, const char *, int, ...);
    int (*close_)(int) = REAL(int, close, int);
    int saved = errno;
    char line[2048];
    int length = snprintf(line, sizeof line, "%s\n", call);
    int at = reached && length < (int)sizeof line ? open_(reached, O_WRONLY | O_APPEND) : -1;
    if (at >= 0) {
        if (REAL(ssize_t, write, int, const void *, size_t)(at, line, (size_t)length) != length)
            give_up("the list of places", call);
        close_(at);
    }
    errno = saved;
    if (!fails || strcmp(call, fails) != 0 || ++hits < (hit ? atoi(hit) : 1))
        return 0;
    const char *times = getenv("POWER_TIMES");
    at = open_(getenv("POWER_FAILED"), O_WRONLY | O_CREAT | O_APPEND, 0600);
    flock(at, LOCK_EX);
    int is_over = lseek(at, 0, SEEK_END) >= (times ? atoi(times) : 1);
    if (!is_over && REAL(ssize_t, write, int, const void *, size_t)(at, "", 1) != 1)
        give_up("the count of failures", call);
    close_(at);
    errno = saved;
    if (is_over)
        return 0;
    if (is_all || is_traced(fd)) {
        struct record head = {.kind = SYNC_FAILED, .inode = is_all ? 0 : inode_of(fd)};
        lock();
        record(head, NULL, 0, 0);
        unlock();
    }
    errno = number ? atoi(number) : EIO;
    return 1;
}

int fsync(int fd) {
    return sync_descriptor(fd, 0);
}

int fdatasync(int fd) {
    return sync_descriptor(fd, 1);
}

int syncfs(int fd) {
    if (is_traced(fd)) {
        sync_inode(0, 0);
        return 0;
    }
    return state_of(fd) >= TRACED ? 0 : REAL(int, syncfs, int)(fd);
}

void sync(void) {
    if (log_fd >= 0)
        sync_inode(0, 0);
}

/* starts writing, and may wait for it, but no disk's cache is flushed: promises nothing */
int sync_file_range(int fd, off64_t offset, off64_t length, unsigned flags) {
    if (is_traced(fd)) {
        if (flags & SYNC_FILE_RANGE_WAIT_AFTER)
            take_time(1);
        return 0;
    }
    if (state_of(fd) >= TRACED)
        return 0;
    return REAL(int, sync_file_range, int, off64_t, off64_t, unsigned)(fd, offset, length, flags);
}

/* ---- Mappings ----------------------------------------------------------------------------- */

void *mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset) {
    void *at = REAL(void *, mmap, void *, size_t, int, int, int, off_t)(address, length, protection,
                                                                        flags, fd, offset);
    int shared = (flags & MAP_TYPE) != MAP_PRIVATE && (protection & PROT_WRITE);
    if (fd < 0 || !shared || at == MAP_FAILED || !is_traced(fd))
        return at;
    if ((length == COUNTERS_BYTES || length == SLOTS_BYTES) && !offset)
        return at; /* native/counters.h, native/slots.c: a power cut may take both */
    if (length > MAPPING_BYTES || offset)
        give_up("a large mapping", "a file");
    lock();
    struct mapping *free_ = mappings;
    while (free_ < mappings + MAPPINGS && free_->at)
        free_++;
    if (free_ == mappings + MAPPINGS)
        give_up("more mappings", "a file");
    *free_ = (struct mapping){at, length, inode_of(fd), {0}};
    memcpy(free_->known, at, length);
    unlock();
    return at;
}

void *mmap64(void *address, size_t length, int protection, int flags, int fd, off64_t offset) {
    return mmap(address, length, protection, flags, fd, offset);
}

static struct mapping *mapping_at(const void *at) {
    for (struct mapping *each = mappings; each < mappings + MAPPINGS; each++)
        if (each->at && each->at == at)
            return each;
    return NULL;
}

int munmap(void *at, size_t length) {
    if (log_fd >= 0 && mapping_at(at)) {
        lock();
        put_mapped();
        struct mapping *mapping = mapping_at(at);
        if (mapping)
            mapping->at = NULL;
        unlock();
    }
    return REAL(int, munmap, void *, size_t)(at, length);
}

int msync(void *at, size_t length, int flags) {
    struct mapping *mapping = log_fd >= 0 ? mapping_at(at) : NULL;
    if (!mapping)
        return REAL(int, msync, void *, size_t, int)(at, length, flags);
    if (flags & MS_SYNC)
        sync_inode(mapping->inode, 1);
    return 0;
}

#include "power_names.h"

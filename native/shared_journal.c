/* Shared journals; see shared_journal.h. */
#define _GNU_SOURCE
#include "shared_journal.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "commits.h"
#include "counters.h"
#include "crc32c.h"
#include "events.h"
#include "failpoint.h"
#include "folder.h"
#include "host.h"
#include "sync.h"
#include "threads.h"

enum {
    BLOCK = FBC_FILE_BLOCK,
    ALIGNMENT = 64,
    VOID = 88,             /* bytes */
    VOID_ROOM = 3 * BLOCK, /* two copies, each in a block of its own, from any place on */
    FIRST_BYTES = 32 * 1024,
    MOST_BYTES = 16 * 1024 * 1024,
    FEW = 2,        /* transactions that commit at a time */
    MOST_IDLE = 16, /* files of databases in which nobody works */
    AGE_S = 10,     /* of a journal that is appended to */
    LOOK_S = 2,
    PAUSE_S = 5
};

struct fbc_shared_file {
    struct fbc_shared_writer *writer;
    int fd;
    char name[40];
    unsigned char uuid[16];
    uint64_t inode;          /* of the database */
    struct stat status;      /* its own, as it was made */
    unsigned char owner[16]; /* as whom it was made: the bridge may have been started anew */
    uint64_t size;           /* bytes, all written */
    uint64_t end, synced;    /* where the next thing goes; on disk */
    unsigned open;           /* places in it of transactions that have not ended */
    unsigned transactions, voided;
    int has_other_voids; /* for places in other journals */
    int error;           /* errno of a write or sync that failed: it takes nothing any more */
    int is_synced;       /* what is in it is to survive a power cut */
    int is_left;         /* nor does it then; closed as soon as all in it has ended */
    int is_syncing;
    struct fbc_shared_waiter *waiters; /* for a sync that begins once the present one has ended */
    int is_queued;                     /* SYNC is, or at work */
    struct fbc_sync sync;
    time_t since; /* its first transaction, or as long as there is none: it was made */
};

/* Of one database: see fbc_database. */
struct fbc_shared_writer {
    pthread_mutex_t lock; /* of all that follows, and of the files' fields */
    struct fbc_shared_file *current, *next;
    uint64_t next_bytes;
    int wants_next;
    time_t no_next_until; /* as making one has failed */
};

static atomic_int open_files;

static sem_t wanted; /* something for the thread that makes files to do */

static time_t now_s(void) {
    return fbc_monotonic_in(0).tv_sec;
}

static uint64_t aligned(uint64_t offset, uint64_t alignment) {
    return (offset + alignment - 1) / alignment * alignment;
}

/* ---- Files -------------------------------------------------------------------------------- */

static int write_all(int fd, const void *content, size_t length, uint64_t offset) {
    const char *from = content;
    while (length) {
        ssize_t written = pwrite(fd, from, length, (off_t)offset);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return written < 0 ? errno : ENOSPC;
        from += written;
        offset += (uint64_t)written;
        length -= (size_t)written;
    }
    return 0;
}

/* All of it written, so that a sync later touches no metadata. */
static int fill(const struct fbc_shared_file *file, const struct fbc_database *database) {
    enum { PIECE = 256 * 1024 };
    static const char zeros[PIECE];
    unsigned char first[BLOCK];
    struct fbc_journal_identity identity = {.database_inode = file->inode,
                                            .database = database->path};
    memcpy(identity.uuid, file->uuid, 16);
    memcpy(identity.owner, fbc_folder.owner, 16);
    memcpy(identity.boot, fbc_folder.boot, 16);
    memcpy(identity.database_guid, database->guid, 16);
    fbc_file_header(first, &identity, fbc_now_us(), 0);
    int failed = write_all(file->fd, first, sizeof first, 0);
    for (uint64_t at = BLOCK; !failed && at < file->size; at += PIECE) {
        uint64_t left = file->size - at;
        failed = write_all(file->fd, zeros, left < PIECE ? left : PIECE, at);
    }
    if (!failed && file->is_synced && fdatasync(file->fd) != 0)
        failed = errno;
    return failed;
}

/* Its content comes before its name. Where it fails there is neither; returns an errno. */
static int put_in_place(struct fbc_shared_file *file, const struct fbc_database *database) {
    file->fd = fbc_folder_make_file(file->name);
    if (file->fd < 0)
        return errno;
    int failed = fill(file, database);
    FBC_FAILPOINT("shared.filled");
    if (!failed && fstat(file->fd, &file->status) != 0)
        failed = errno;
    if (!failed)
        failed = fbc_folder_name_live(file->name, file->is_synced);
    if (failed) {
        unlinkat(fbc_folder.making, file->name, 0);
        close(file->fd);
    }
    FBC_FAILPOINT("shared.named");
    return failed;
}

static struct fbc_shared_file *make(struct fbc_shared_writer *writer,
                                    const struct fbc_database *database, uint64_t inode,
                                    uint64_t size, struct fbc_error *error) {
    struct fbc_shared_file *file = calloc(1, sizeof *file);
    if (!file) {
        fbc_error_set(error, 0, "no memory for a journal");
        return NULL;
    }
    int failed = fbc_journal_name(file->name, file->uuid);
    if (!failed) {
        file->writer = writer;
        file->inode = inode;
        file->size = size;
        file->end = file->synced = BLOCK;
        file->since = now_s();
        fbc_folder_hold();
        memcpy(file->owner, fbc_folder.owner, 16);
        file->is_synced = fbc_folder.is_synced;
        failed = put_in_place(file, database);
        fbc_folder_release();
    }
    if (failed) {
        fbc_error_set(error, failed, "cannot create a journal of %llu bytes in %.300s",
                      (unsigned long long)size, fbc_folder.path);
        free(file);
        return NULL;
    }
    fbc_disk_grow((int64_t)size);
    atomic_fetch_add(&open_files, 1);
    return file;
}

/* With the lock: close FILE if nobody needs it; whoever confirms may close the journal then. */
static void close_if_done(struct fbc_shared_file *file) {
    if (!file->is_left || file->open || file->is_queued)
        return;
    struct fbc_event left = {.kind = FBC_JOURNAL_LEFT, .fd = -1};
    memcpy(left.home, file->uuid, 16);
    if (!file->error && !file->has_other_voids) {
        left.offset = file->end;
        left.events = file->transactions - file->voided;
    }
    FBC_FAILPOINT("shared.leaving");
    close(file->fd);
    fbc_events_hand_over(&left);
    atomic_fetch_sub(&open_files, 1);
    free(file);
}

static void leave(struct fbc_shared_file *file) {
    struct fbc_shared_writer *writer = file->writer;
    if (writer->current == file)
        writer->current = NULL;
    file->is_left = 1;
    close_if_done(file);
}

static int is_usable(const struct fbc_shared_file *file, uint64_t inode, uint64_t need) {
    uint64_t used = aligned(file->end, ALIGNMENT) + need + file->open * (uint64_t)VOID_ROOM;
    return !file->error && !file->is_left && memcmp(file->owner, fbc_folder.owner, 16) == 0 &&
           file->is_synced == fbc_folder.is_synced && file->inode == inode && used <= file->size &&
           (fbc_folder.transactions <= 0 ||
            file->transactions < (unsigned)fbc_folder.transactions) &&
           fbc_folder_leads_to(file->name, file->status.st_dev, file->status.st_ino);
}

/* Bytes of the file behind one of SIZE bytes. What journals may take on disk is not to be used up
 * by what is made beforehand, of several databases. */
static uint64_t bytes_after(uint64_t size) {
    enum { SHARE = 64 };
    uint64_t limit = fbc_disk_most();
    uint64_t most = limit && limit / SHARE < MOST_BYTES ? limit / SHARE : MOST_BYTES;
    return 2 * size <= most ? 2 * size : size;
}

/* With the lock: return the file that NEED bytes go into, the next one if need be, for which the
 * caller has looked whether the folder is in place. */
static struct fbc_shared_file *room_for(struct fbc_shared_writer *writer,
                                        const struct fbc_database *database, uint64_t inode,
                                        uint64_t need, struct fbc_error *error) {
    if (writer->current && is_usable(writer->current, inode, need))
        return writer->current;
    if (writer->current)
        leave(writer->current);
    struct fbc_shared_file *file = writer->next;
    writer->next = NULL;
    if (file && !is_usable(file, inode, need)) {
        leave(file);
        file = NULL;
    }
    if (!file) {
        uint64_t least = aligned(BLOCK + need, BLOCK);
        uint64_t size = writer->next_bytes > least ? writer->next_bytes : least;
        file = make(writer, database, inode, size, error);
        if (!file && size > least) /* there may be room for that */
            file = make(writer, database, inode, least, error);
    }
    if (file && file->size >= writer->next_bytes)
        writer->next_bytes = bytes_after(writer->next_bytes);
    writer->current = file;
    return file;
}

/* ---- Syncs -------------------------------------------------------------------------------- */

/* A thread that waits for a sync of a file, up to byte END. */
struct fbc_shared_waiter {
    struct fbc_shared_waiter *next;
    uint64_t end;
    atomic_uint is_woken; /* a futex */
};

/* With the lock: tell whether a sync of FILE is worth a thread that runs it beside the engine's.
 * While many commit it is not: one that comes first to wait for it runs it, for them all. */
static int is_worth_thread(const struct fbc_shared_file *file) {
    return file->is_synced && !file->error && file->open <= FEW &&
           aligned(file->synced, BLOCK) < file->end;
}

/* With the lock: wake those for whom the sync of FILE that has ended was the last one, and, unless
 * HAS_SUCCESSOR, one of the others, which runs the next. */
static void wake(struct fbc_shared_file *file, int has_successor) {
    for (struct fbc_shared_waiter **link = &file->waiters, *each; (each = *link);) {
        int is_served = file->error || each->end <= file->synced;
        if (!is_served && has_successor) {
            link = &each->next;
            continue;
        }
        has_successor |= !is_served;
        *link = each->next; /* it is on its thread's stack, and gone once that is told */
        atomic_store_explicit(&each->is_woken, 1, memory_order_release);
        syscall(SYS_futex, &each->is_woken, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    }
}

/* With the lock, which it gives back meanwhile: sync all that is in FILE. IS_THREAD: the caller is
 * there for that alone, and goes on as long as it is worth it. */
static void sync_file(struct fbc_shared_file *file, int is_thread) {
    struct fbc_shared_writer *writer = file->writer;
    uint64_t to = file->end;
    file->end = aligned(to, BLOCK); /* what is on disk by then is never written again */
    file->is_syncing = 1;
    pthread_mutex_unlock(&writer->lock);
    FBC_FAILPOINT("shared.before_sync");
    int failed = fdatasync(file->fd) == 0 ? 0 : errno;
    FBC_FAILPOINT("shared.synced");
    pthread_mutex_lock(&writer->lock);
    file->is_syncing = 0;
    if (failed)
        file->error = failed;
    else
        file->synced = to;
    wake(file, is_thread && is_worth_thread(file));
}

static void wait_for_sync(struct fbc_shared_file *file, uint64_t end) {
    struct fbc_shared_waiter self = {.next = file->waiters, .end = end};
    file->waiters = &self;
    pthread_mutex_unlock(&file->writer->lock);
    while (!atomic_load_explicit(&self.is_woken, memory_order_acquire))
        syscall(SYS_futex, &self.is_woken, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
    pthread_mutex_lock(&file->writer->lock);
}

/* Wait until FILE, in which something of the caller's has not ended, is on disk up to END. Whoever
 * needs a sync while none is at work runs it, for all that is in the file by then. */
static int await(struct fbc_shared_file *file, uint64_t end) {
    if (!file->is_synced)
        return 0;
    pthread_mutex_lock(&file->writer->lock);
    while (file->synced < end && !file->error)
        if (file->is_syncing)
            wait_for_sync(file, end);
        else
            sync_file(file, 0);
    int failed = file->synced >= end ? 0 : file->error;
    pthread_mutex_unlock(&file->writer->lock);
    return failed;
}

int fbc_shared_await(const struct fbc_place *place) {
    return await(place->file, place->end);
}

static void run_sync(struct fbc_sync *sync) {
    struct fbc_shared_file *file =
        (struct fbc_shared_file *)((char *)sync - offsetof(struct fbc_shared_file, sync));
    struct fbc_shared_writer *writer = file->writer;
    pthread_mutex_lock(&writer->lock);
    while (!file->is_syncing && is_worth_thread(file))
        sync_file(file, 1);
    file->is_queued = 0;
    close_if_done(file);
    pthread_mutex_unlock(&writer->lock);
}

/* With the lock, which it gives back: have a sync of FILE begin, if that is worth a thread. */
static void begin_sync_and_unlock(struct fbc_shared_file *file) {
    int begins = is_worth_thread(file) && !file->is_syncing && !file->is_queued;
    file->is_queued |= begins;
    pthread_mutex_unlock(&file->writer->lock);
    if (begins)
        fbc_sync_run(&file->sync, run_sync);
}

/* ---- The thread that makes files beforehand, and closes old ones --------------------------- */

static void make_next(struct fbc_database *database, struct fbc_shared_writer *writer) {
    struct fbc_error error;
    pthread_mutex_lock(&writer->lock);
    int is_wanted = writer->wants_next && !writer->next && writer->current;
    uint64_t size = writer->next_bytes;
    uint64_t inode = writer->current ? writer->current->inode : 0;
    pthread_mutex_unlock(&writer->lock);
    /* Where that fails the transaction that needs one tries it, and is told why. */
    struct fbc_shared_file *file = is_wanted ? make(writer, database, inode, size, &error) : NULL;
    pthread_mutex_lock(&writer->lock);
    writer->wants_next = 0;
    writer->no_next_until = is_wanted && !file ? now_s() + PAUSE_S : 0;
    if (file && writer->next) {
        file->is_left = 1;
        close_if_done(file);
    } else if (file)
        writer->next = file;
    pthread_mutex_unlock(&writer->lock);
}

/* Leave what WRITER has for AGE_S seconds: archives and audits see a journal once it is closed. */
static void leave_old(struct fbc_shared_writer *writer, int age_s) {
    struct fbc_shared_file *file;
    pthread_mutex_lock(&writer->lock);
    while ((file = writer->current ? writer->current : writer->next) &&
           now_s() - file->since >= age_s) {
        if (file->end < file->size / 4)
            writer->next_bytes = FIRST_BYTES;
        if (file == writer->next)
            writer->next = NULL;
        leave(file);
    }
    pthread_mutex_unlock(&writer->lock);
}

void fbc_shared_spare(struct fbc_database *database) {
    struct fbc_shared_writer *writer = atomic_load(&database->shared);
    if (writer && atomic_load(&open_files) > MOST_IDLE)
        leave_old(writer, 0);
}

static void *serve(void *unused) {
    (void)unused;
    for (;;) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += LOOK_S;
        sem_clockwait(&wanted, CLOCK_MONOTONIC, &until);
        struct fbc_database *first = fbc_databases_lock();
        fbc_databases_unlock(); /* none is ever removed */
        for (struct fbc_database *each = first; each; each = each->next) {
            struct fbc_shared_writer *writer = atomic_load(&each->shared);
            if (writer) {
                make_next(each, writer);
                leave_old(writer, AGE_S);
            }
        }
    }
    return NULL;
}

static struct fbc_shared_writer *writer_of(struct fbc_database *database) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static int is_ready;
    static atomic_int has_thread; /* which could not be started once, perhaps: tried again */
    struct fbc_shared_writer *writer = atomic_load(&database->shared);
    if (writer && has_thread)
        return writer;
    pthread_mutex_lock(&lock);
    writer = atomic_load(&database->shared);
    if (!is_ready)
        sem_init(&wanted, 0, 0);
    is_ready = 1;
    if (!has_thread)
        has_thread = fbc_thread_start("fbc-journals", serve) == 0;
    if (!writer && (writer = calloc(1, sizeof *writer))) {
        pthread_mutex_init(&writer->lock, NULL);
        writer->next_bytes = FIRST_BYTES;
        atomic_store(&database->shared, writer);
    }
    pthread_mutex_unlock(&lock);
    return writer;
}

/* ---- Transactions and voids ---------------------------------------------------------------- */

/* With the lock: write two voids for PLACE behind all that is in FILE. Returns an errno. */
static int write_voids(struct fbc_shared_file *file, const struct fbc_place *place) {
    int failed = 0;
    file->has_other_voids |= file != place->file;
    for (int i = 0; i < 2 && !failed; i++) {
        unsigned char content[VOID] = {0};
        file->end = aligned(file->end, BLOCK);
        memcpy(content, "FBCV", 4);
        memcpy(content + 8, place->uuid, 16);
        fbc_put64(content + 24, place->transaction);
        memcpy(content + 32, place->file->uuid, 16);
        fbc_put64(content + 48, place->offset);
        memcpy(content + 56, file->uuid, 16);
        fbc_put64(content + 72, file->end);
        uint32_t crc = fbc_crc32c(0, file->uuid, 16);
        fbc_put32(content + VOID - 4, fbc_crc32c(crc, content, VOID - 4));
        failed = write_all(file->fd, content, sizeof content, file->end);
        file->end += VOID;
    }
    return failed;
}

/* With the lock: write UNIT at the end of FILE. Returns an errno. */
static int write_unit(struct fbc_shared_file *file, const struct fbc_unit *unit,
                      struct fbc_place *place) {
    struct iovec parts[4], *part = parts;
    int count = unit->count;
    uint64_t offset = aligned(file->end, ALIGNMENT), at = offset;
    memcpy(parts, unit->parts, sizeof parts);
    fbc_head_place(unit->head, file->uuid, offset, file->synced);
    while (count) {
        ssize_t written = pwritev(file->fd, part, count, (off_t)at);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0) {
            int failed = written < 0 ? errno : ENOSPC;
            file->end = offset + unit->length; /* where nobody looks into it for a void */
            return failed;
        }
        at += (uint64_t)written;
        for (; count && (size_t)written >= part->iov_len; part++, count--)
            written -= (ssize_t)part->iov_len;
        if (count) {
            part->iov_base = (char *)part->iov_base + written;
            part->iov_len -= (size_t)written;
        }
    }
    file->end = at;
    file->open++;
    if (!file->transactions++)
        file->since = now_s();
    *place = (struct fbc_place){.file = file,
                                .offset = offset,
                                .length = unit->length,
                                .seal_end = unit->seal_end,
                                .catalogue = unit->catalogue,
                                .end = at,
                                .transaction = unit->transaction};
    memcpy(place->uuid, unit->uuid, 16);
    return 0;
}

/* With the lock: ask for the next file once this one is half full. */
static void ask_for_next(struct fbc_shared_writer *writer, const struct fbc_shared_file *file) {
    if (file->end < file->size / 2 || writer->next || writer->wants_next ||
        now_s() < writer->no_next_until)
        return;
    writer->wants_next = 1;
    sem_post(&wanted);
}

int fbc_shared_append(struct fbc_database *database, uint64_t inode, const struct fbc_unit *unit,
                      const struct fbc_place *former, struct fbc_place *place,
                      struct fbc_error *error) {
    struct fbc_shared_writer *writer = writer_of(database);
    uint64_t need = unit->length + VOID_ROOM + (former ? VOID_ROOM : 0);
    if (!writer) {
        fbc_error_set(error, 0, "no memory for a journal");
        return FBC_FAILED;
    }
    pthread_mutex_lock(&writer->lock);
    for (int tries = 0; tries < 2; tries++) {
        struct fbc_shared_file *file = writer->current;
        if (!file || !is_usable(file, inode, need)) {
            pthread_mutex_unlock(&writer->lock);
            if (!fbc_host_folder_in_place(error))
                return FBC_FAILED;
            pthread_mutex_lock(&writer->lock);
            file = room_for(writer, database, inode, need, error);
        }
        if (!file)
            break;
        FBC_FAILPOINT("shared.before_append");
        int failed = former ? write_voids(file, former) : 0;
        if (!failed)
            failed = write_unit(file, unit, place);
        FBC_FAILPOINT("shared.appended");
        if (!failed) {
            ask_for_next(writer, file);
            begin_sync_and_unlock(file);
            return FBC_OK;
        }
        fbc_error_set(error, failed, "cannot write %s.log.live", file->name);
        file->error = failed;
    }
    pthread_mutex_unlock(&writer->lock);
    return FBC_FAILED;
}

/* Where no void can be had on disk: one that at least whoever reads the file meets. */
static void void_anyhow(const struct fbc_place *place) {
    pthread_mutex_lock(&place->file->writer->lock);
    write_voids(place->file, place);
    pthread_mutex_unlock(&place->file->writer->lock);
}

static void let_go(struct fbc_place *place, int is_void) {
    struct fbc_shared_file *file = place->file;
    struct fbc_shared_writer *writer = file->writer;
    pthread_mutex_lock(&writer->lock);
    file->open--;
    file->voided += (unsigned)is_void;
    close_if_done(file);
    pthread_mutex_unlock(&writer->lock);
    place->file = NULL;
}

int fbc_shared_void(struct fbc_database *database, struct fbc_place *place,
                    struct fbc_error *error) {
    struct fbc_shared_file *file = place->file, *to = file;
    struct fbc_shared_writer *writer = file->writer;
    FBC_FAILPOINT("void.before");
    for (int tries = 0; tries < 3; tries++) {
        pthread_mutex_lock(&writer->lock);
        to = file->error ? room_for(writer, database, file->inode, VOID_ROOM, error) : file;
        if (!to) {
            pthread_mutex_unlock(&writer->lock);
            break;
        }
        to->open++; /* so that it stays */
        int failed = write_voids(to, place);
        uint64_t end = to->end;
        FBC_FAILPOINT("void.written");
        if (failed)
            to->error = failed;
        pthread_mutex_unlock(&writer->lock);
        if (!failed)
            failed = await(to, end);
        FBC_FAILPOINT("void.synced");
        if (failed)
            fbc_error_set(error, failed, "cannot write %s.log.live", to->name);
        pthread_mutex_lock(&writer->lock);
        to->open--;
        close_if_done(to);
        pthread_mutex_unlock(&writer->lock);
        if (!failed) {
            let_go(place, 1);
            return FBC_OK;
        }
    }
    void_anyhow(place);
    return FBC_FAILED;
}

void fbc_shared_let_go(struct fbc_place *place) {
    if (place->file)
        let_go(place, 0);
}

void fbc_shared_uuid(const struct fbc_place *place, unsigned char uuid[16]) {
    memcpy(uuid, place->file->uuid, 16);
}

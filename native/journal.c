/* The writer of one journal; see journal.h and docs/journal-format.md. */
#define _GNU_SOURCE
#include "journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "crc32c.h"
#include "failpoint.h"
#include "shared_journal.h"

enum { FLAG_DEFINITIONS = 1 /* or DDL */, FLAG_SEAL = 2, FLAG_CATALOGUE = 4 };
/* Start write-back of a long journal in steps, so that the sync at its end stays short. */
enum { WRITE_BACK_STEP = 8 * 1024 * 1024, FIRST_CAPACITY = 8 * 1024, LARGEST_KEPT = 1024 * 1024 };

static _Atomic uint64_t buffered, most_buffered; /* bytes */

void fbc_journal_limit_memory(uint64_t bytes) {
    atomic_store(&most_buffered, bytes);
}

/* How many bytes a block holds when it is written out. The less of the memory is free, the fewer:
 * so it is the largest transactions that go to files first, and small ones stay as long as that is
 * enough. Each sees to itself, at its next record; beyond the limit all do that hold 8 KiB. */
static size_t block_target(void) {
    uint64_t most = atomic_load(&most_buffered), now = atomic_load(&buffered);
    size_t target = FBC_BLOCK_TARGET;
    for (unsigned eighths = 5; most && eighths <= 8 && now > most / 8 * eighths; eighths++)
        target /= 2;
    return target;
}

static void free_buffer(struct fbc_journal *journal) {
    free(journal->buffer);
    atomic_fetch_sub(&buffered, journal->capacity);
    journal->buffer = NULL;
    journal->capacity = 0;
}

void fbc_error_set(struct fbc_error *error, int error_number, const char *text, ...) {
    va_list arguments;
    va_start(arguments, text);
    int length = vsnprintf(error->text, sizeof error->text, text, arguments);
    va_end(arguments);
    if (error_number && length >= 0 && (size_t)length < sizeof error->text) {
        char meaning[128];
        snprintf(error->text + length, sizeof error->text - (size_t)length, ": %s (errno %d)",
                 strerror_r(error_number, meaning, sizeof meaning), error_number);
    }
}

void fbc_journal_open(struct fbc_journal *journal, int fd, const char *name,
                      const struct fbc_journal_identity *identity) {
    memset(journal, 0, sizeof *journal);
    journal->fd = fd;
    journal->identity = *identity;
    snprintf(journal->name, sizeof journal->name, "%s", name);
    journal->at.block_offset = FBC_HEAD;
    journal->at.block_first_event = 1;
    journal->at.previous_crc = fbc_crc32c(0, identity->uuid, 16);
}

int fbc_journal_sync_failed(struct fbc_journal *journal, int error_number,
                            struct fbc_error *error) {
    journal->is_untrusted = 1;
    fbc_error_set(error, error_number, "cannot sync %s.log.live", journal->name);
    return FBC_FAILED;
}

static int write_all(struct fbc_journal *journal, struct iovec *parts, int count, uint64_t offset,
                     struct fbc_error *error) {
    while (count > 0) {
        ssize_t written = pwritev(journal->fd, parts, count, (off_t)offset);
        if (written < 0) {
            if (errno == EINTR)
                continue;
            fbc_error_set(error, errno, "cannot write %s.log.live at byte %llu", journal->name,
                          (unsigned long long)offset);
            return FBC_FAILED;
        }
        offset += (uint64_t)written;
        journal->unsynced += (uint64_t)written;
        while (count > 0 && (size_t)written >= parts->iov_len) {
            written -= (ssize_t)parts->iov_len;
            parts++;
            count--;
        }
        if (count > 0) {
            parts->iov_base = (char *)parts->iov_base + written;
            parts->iov_len -= (size_t)written;
        }
    }
    if (journal->unsynced >= WRITE_BACK_STEP) {
        /* The sync before the commit is what counts, but it need not tell of what fails here. */
        journal->unsynced = 0;
        if (sync_file_range(journal->fd, 0, 0, SYNC_FILE_RANGE_WRITE) != 0 && errno != ENOSYS)
            return fbc_journal_sync_failed(journal, errno, error);
    }
    return FBC_OK;
}

/* Fill in the header of a block whose PAYLOAD_LENGTH bytes follow it; returns its checksum. */
static uint32_t close_block(struct fbc_journal *journal, char *block, size_t payload_length,
                            uint64_t offset, uint64_t first_event, uint32_t previous_crc,
                            unsigned flags, uint32_t records) {
    memcpy(block, "FBCB", 4);
    fbc_put32(block + 4, (uint32_t)payload_length);
    fbc_put64(block + 8, offset);
    fbc_put64(block + 16, first_event);
    fbc_put32(block + 24, previous_crc);
    fbc_put16(block + 28, (uint16_t)flags);
    fbc_put16(block + 30, 0);
    fbc_put32(block + 32, records);
    uint32_t crc = fbc_crc32c(0, journal->identity.uuid, 16);
    crc = fbc_crc32c(crc, block, 36);
    crc = fbc_crc32c(crc, block + FBC_BLOCK_HEADER, payload_length);
    fbc_put32(block + 36, crc);
    return crc;
}

/* Close SEAL, which goes to where AT is; returns its checksum. */
static uint32_t close_seal(struct fbc_journal *journal, char *seal, const struct fbc_position *at,
                           int64_t sealed_us, uint64_t floor) {
    char *payload = seal + FBC_BLOCK_HEADER;
    fbc_put64(payload, at->events);
    fbc_put64(payload + 8, at->records);
    fbc_put64(payload + 16, at->blocks);
    fbc_put64(payload + 24, (uint64_t)sealed_us);
    fbc_put64(payload + 32, floor);
    memcpy(payload + 40, journal->identity.uuid, 16);
    fbc_put64(payload + 56, journal->identity.transaction);
    return close_block(journal, seal, FBC_SEAL - FBC_BLOCK_HEADER, at->block_offset, at->events + 1,
                       at->previous_crc, FLAG_SEAL, 0);
}

/* Close the block being filled, if there is one; returns where the next one goes. */
static struct fbc_position close_filled(struct fbc_journal *journal) {
    struct fbc_position next = journal->at;
    if (!next.used)
        return next;
    next.previous_crc =
        close_block(journal, journal->buffer, next.used, next.block_offset, next.block_first_event,
                    next.previous_crc, next.block_flags, next.block_records);
    next.block_offset += FBC_BLOCK_HEADER + next.used;
    next.blocks++;
    next.used = 0;
    next.block_flags = 0;
    next.block_records = 0;
    next.block_first_event = next.events + 1;
    return next;
}

static void fill_head(const struct fbc_journal *journal, unsigned char *head, uint64_t length) {
    const struct fbc_journal_identity *identity = &journal->identity;
    memset(head, 0, FBC_HEAD);
    memcpy(head, "FBCDCT\r\n", 8);
    fbc_put16(head + 8, 2);
    fbc_put16(head + 10, FBC_HEAD);
    memcpy(head + 16, identity->uuid, 16);
    fbc_put64(head + 32, identity->transaction);
    fbc_put64(head + 40, (uint64_t)identity->started_us);
    memcpy(head + 48, identity->database_guid, 16);
    memcpy(head + 64, identity->owner, 16);
    fbc_put64(head + 80, identity->database_inode);
    fbc_put64(head + 88, length);
}

void fbc_head_place(unsigned char *head, const unsigned char *uuid, uint64_t offset,
                    uint64_t synced) {
    memcpy(head + 96, uuid, 16);
    fbc_put64(head + 112, offset);
    fbc_put64(head + 120, synced);
    uint32_t crc = fbc_crc32c(0, head + 16, 16);
    fbc_put32(head + FBC_HEAD - 4, fbc_crc32c(crc, head, FBC_HEAD - 4));
}

void fbc_file_header(unsigned char *first, const struct fbc_journal_identity *identity,
                     int64_t begun_us, int is_own) {
    size_t length = strlen(identity->database);
    memset(first, 0, FBC_FILE_BLOCK);
    memcpy(first, "FBCDCJ\r\n", 8);
    fbc_put16(first + 8, 2);
    fbc_put16(first + 10, FBC_FILE_BLOCK);
    fbc_put32(first + 12, is_own != 0);
    memcpy(first + 16, identity->uuid, 16);
    memcpy(first + 32, identity->owner, 16);
    memcpy(first + 48, identity->database_guid, 16);
    fbc_put64(first + 64, identity->database_inode);
    memcpy(first + 72, identity->boot, 16);
    fbc_put64(first + 88, (uint64_t)begun_us);
    fbc_put64(first + 96, is_own ? identity->transaction : 0);
    fbc_put16(first + 104, (uint16_t)length);
    memcpy(first + 106, identity->database, length);
    uint32_t crc = fbc_crc32c(0, identity->uuid, 16);
    fbc_put32(first + FBC_FILE_BLOCK - 4, fbc_crc32c(crc, first, FBC_FILE_BLOCK - 4));
}

/* Write the block that was filled and closed to the journal's own file, and COUNT parts BEHIND it,
 * in one write. NEXT: where the next block goes. */
static int write_block(struct fbc_journal *journal, const struct fbc_position *next,
                       const struct iovec *behind, int behind_count, struct fbc_error *error) {
    unsigned char first[FBC_FILE_BLOCK + FBC_HEAD];
    struct iovec parts[4];
    int count = 0;
    if (journal->fd < 0 && !journal->take_file(journal, error))
        return FBC_FAILED;
    uint64_t offset = journal->header_written ? FBC_FILE_BLOCK + journal->at.block_offset : 0;
    if (!journal->header_written) {
        unsigned char *head = first + FBC_FILE_BLOCK;
        fbc_file_header(first, &journal->identity, journal->identity.started_us, 1);
        fill_head(journal, head, 0);
        fbc_head_place(head, journal->identity.uuid, FBC_FILE_BLOCK, 0);
        parts[count++] = (struct iovec){first, sizeof first};
    }
    if (journal->at.used)
        parts[count++] = (struct iovec){journal->buffer, FBC_BLOCK_HEADER + journal->at.used};
    for (int i = 0; i < behind_count; i++)
        parts[count++] = behind[i];
    FBC_FAILPOINT("block.before");
    uint64_t end = offset;
    for (int i = 0; i < count; i++)
        end += parts[i].iov_len;
    if (end > journal->reserved && journal->reserve && !journal->reserve(journal, end, error))
        return FBC_FAILED;
    if (!write_all(journal, parts, count, offset, error))
        return FBC_FAILED;
    FBC_FAILPOINT("block.written");
    journal->at = *next;
    if (!journal->header_written && journal->is_in_file)
        journal->is_in_file(journal);
    journal->header_written = 1;
    if (journal->capacity > LARGEST_KEPT || block_target() < FBC_BLOCK_TARGET)
        free_buffer(journal); /* nor must a huge record stay */
    return FBC_OK;
}

/* Make the buffer hold WANTED bytes at least; what is in it stays. */
static int grow(struct fbc_journal *journal, size_t wanted, struct fbc_error *error) {
    if (wanted <= journal->capacity)
        return FBC_OK;
    size_t capacity = journal->capacity ? journal->capacity : FIRST_CAPACITY;
    while (capacity < wanted)
        capacity *= 2;
    char *buffer = realloc(journal->buffer, capacity);
    if (!buffer) {
        fbc_error_set(error, 0, "no memory for a journal block of %zu bytes", capacity);
        return FBC_FAILED;
    }
    atomic_fetch_add(&buffered, capacity - journal->capacity);
    journal->buffer = buffer;
    journal->capacity = capacity;
    return FBC_OK;
}

char *fbc_record_begin(struct fbc_journal *journal, size_t length, struct fbc_error *error) {
    size_t needed = FBC_RECORD_HEADER + length;
    if (needed > FBC_BLOCK_LIMIT) {
        fbc_error_set(error, 0, "a record of %zu bytes is over the journal's limit of %d", needed,
                      FBC_BLOCK_LIMIT);
        return NULL;
    }
    /* asked of what is there, not of what may come: a wide row reserves far more than it uses */
    if ((journal->at.used >= block_target() || journal->at.used + needed > FBC_BLOCK_LIMIT) &&
        !fbc_journal_flush(journal, error))
        return NULL;
    if (!grow(journal, FBC_BLOCK_HEADER + journal->at.used + needed, error))
        return NULL;
    return journal->buffer + FBC_BLOCK_HEADER + journal->at.used + FBC_RECORD_HEADER;
}

void fbc_record_end(struct fbc_journal *journal, enum fbc_record_kind kind, unsigned flags,
                    unsigned table, size_t used) {
    char *record = journal->buffer + FBC_BLOCK_HEADER + journal->at.used;
    record[0] = (char)kind;
    record[1] = (char)flags;
    fbc_put16(record + 2, (uint16_t)table);
    fbc_put32(record + 4, (uint32_t)used);
    journal->at.used += FBC_RECORD_HEADER + used;
    journal->at.records++;
    journal->at.block_records++;
    if (kind == FBC_BEGIN || kind == FBC_TABLE || kind == FBC_DDL)
        journal->at.block_flags |= FLAG_DEFINITIONS;
    if (kind != FBC_BEGIN && kind != FBC_TABLE && kind != FBC_SEQUENCE && kind != FBC_BLOB &&
        kind != FBC_PAD)
        journal->at.events++;
}

int fbc_journal_begin(struct fbc_journal *journal, const char *path, size_t path_length,
                      const char *user, size_t user_length, struct fbc_error *error) {
    char *body = fbc_record_begin(journal, 4 + path_length + user_length, error);
    if (!body)
        return FBC_FAILED;
    fbc_put16(body, (uint16_t)path_length);
    memcpy(body + 2, path, path_length);
    fbc_put16(body + 2 + path_length, (uint16_t)user_length);
    memcpy(body + 4 + path_length, user, user_length);
    fbc_record_end(journal, FBC_BEGIN, 0, 0, 4 + path_length + user_length);
    return FBC_OK;
}

int fbc_journal_cut(struct fbc_journal *journal, const struct fbc_position *position,
                    struct fbc_error *error) {
    if (journal->at.block_offset != position->block_offset && position->used) {
        /* the block was written out since: take its beginning back into the buffer */
        size_t length = FBC_BLOCK_HEADER + position->used;
        size_t have = 0;
        if (!grow(journal, length, error))
            return FBC_FAILED;
        while (have < length) {
            ssize_t got = pread(journal->fd, journal->buffer + have, length - have,
                                (off_t)(FBC_FILE_BLOCK + position->block_offset + have));
            if (got < 0 && errno == EINTR)
                continue;
            if (got <= 0) {
                fbc_error_set(error, got < 0 ? errno : 0, "cannot read %s.log.live back",
                              journal->name);
                return FBC_FAILED;
            }
            have += (size_t)got;
        }
    }
    journal->at = *position;
    return FBC_OK;
}

/* Close CATALOGUE, which follows a seal of checksum CRC that is AT. */
static void close_catalogue(struct fbc_journal *journal, const struct fbc_appendix *catalogue,
                            const struct fbc_position *at, uint32_t crc) {
    close_block(journal, catalogue->block, catalogue->payload, at->block_offset + FBC_SEAL,
                at->events + 1, crc, FLAG_CATALOGUE, catalogue->records);
}

void fbc_journal_pack(struct fbc_journal *journal, unsigned char *head, char *seal,
                      int64_t sealed_us, uint64_t floor, const struct fbc_appendix *catalogue,
                      struct fbc_unit *unit) {
    struct fbc_position at = close_filled(journal);
    uint32_t crc = close_seal(journal, seal, &at, sealed_us, floor);
    *unit = (struct fbc_unit){
        .head = head,
        .parts = {{head, FBC_HEAD},
                  {journal->buffer, FBC_BLOCK_HEADER + journal->at.used},
                  {seal, FBC_SEAL}},
        .count = 3,
        .length = at.block_offset + FBC_SEAL,
        .seal_end = at.block_offset + FBC_SEAL,
        .transaction = journal->identity.transaction,
    };
    if (catalogue && catalogue->payload) {
        close_catalogue(journal, catalogue, &at, crc);
        unit->catalogue = unit->seal_end;
        unit->length += FBC_BLOCK_HEADER + catalogue->payload;
        unit->parts[unit->count++] =
            (struct iovec){catalogue->block, FBC_BLOCK_HEADER + catalogue->payload};
    }
    memcpy(unit->uuid, journal->identity.uuid, 16);
    fill_head(journal, head, unit->length);
}

/* Fill the block of the file up to its end, so that the seal has one of its own: it is all that may
 * be written again once it was synced. */
static int pad(struct fbc_journal *journal, struct fbc_error *error) {
    struct fbc_position *at = &journal->at;
    if (at->used + 2 * FBC_FILE_BLOCK > FBC_BLOCK_LIMIT && !fbc_journal_flush(journal, error))
        return FBC_FAILED;
    if (!at->used && at->block_offset % FBC_FILE_BLOCK == 0)
        return FBC_OK;
    uint64_t end = at->block_offset + FBC_BLOCK_HEADER + at->used;
    size_t room = (FBC_FILE_BLOCK - end % FBC_FILE_BLOCK) % FBC_FILE_BLOCK;
    if (!room && at->used)
        return FBC_OK;
    if (room < FBC_RECORD_HEADER)
        room += FBC_FILE_BLOCK;
    if (!grow(journal, FBC_BLOCK_HEADER + at->used + room, error))
        return FBC_FAILED;
    memset(journal->buffer + FBC_BLOCK_HEADER + at->used, 0, room);
    fbc_record_end(journal, FBC_PAD, 0, 0, room - FBC_RECORD_HEADER);
    return FBC_OK;
}

static void void_seal(struct fbc_journal *journal, uint64_t offset) {
    static const char zeros[FBC_SEAL];
    struct iovec part = {(char *)zeros, sizeof zeros};
    struct fbc_error ignored;
    if (journal->fd >= 0)
        write_all(journal, &part, 1, FBC_FILE_BLOCK + offset, &ignored);
}

int fbc_journal_seal(struct fbc_journal *journal, int64_t sealed_us, uint64_t floor,
                     const struct fbc_appendix *catalogue, struct fbc_error *error) {
    char seal[FBC_SEAL];
    struct iovec parts[2] = {{seal, sizeof seal}};
    int count = 1;
    if (!pad(journal, error))
        return FBC_FAILED;
    struct fbc_position at = close_filled(journal);
    uint32_t crc = close_seal(journal, seal, &at, sealed_us, floor);
    if (catalogue && catalogue->payload) {
        close_catalogue(journal, catalogue, &at, crc);
        parts[count++] = (struct iovec){catalogue->block, FBC_BLOCK_HEADER + catalogue->payload};
    }
    if (!write_block(journal, &at, parts, count, error)) {
        void_seal(journal, at.block_offset); /* it may be there: the catalogue did not fit */
        return FBC_FAILED;
    }
    journal->sealed_at = journal->at.block_offset;
    journal->length = journal->sealed_at + sizeof seal;
    journal->catalogue_at = 0;
    if (count > 1) {
        journal->catalogue_at = journal->length;
        journal->length += parts[1].iov_len;
    }
    return FBC_OK;
}

static int sync_now(struct fbc_journal *journal, struct fbc_error *error) {
    if (fdatasync(journal->fd) == 0)
        return FBC_OK;
    return fbc_journal_sync_failed(journal, errno, error);
}

int fbc_journal_break_seal(struct fbc_journal *journal, int sync, struct fbc_error *error) {
    static const char zeros[FBC_SEAL];
    if (!journal->sealed_at)
        return FBC_OK;
    struct iovec part = {(char *)zeros, sizeof zeros};
    if (!write_all(journal, &part, 1, FBC_FILE_BLOCK + journal->sealed_at, error))
        return FBC_FAILED;
    FBC_FAILPOINT("unseal.written");
    if (sync && !sync_now(journal, error))
        return FBC_FAILED;
    journal->sealed_at = journal->catalogue_at = journal->length = 0;
    return FBC_OK;
}

int fbc_journal_flush(struct fbc_journal *journal, struct fbc_error *error) {
    struct fbc_position next = close_filled(journal);
    return write_block(journal, &next, NULL, 0, error);
}

int fbc_journal_void(struct fbc_journal *journal, int sync, struct fbc_error *error) {
    static const char zeros[FBC_HEAD];
    if (journal->fd < 0)
        return FBC_OK;
    struct iovec part = {(char *)zeros, sizeof zeros};
    if (!write_all(journal, &part, 1, FBC_FILE_BLOCK, error))
        return FBC_FAILED;
    return !sync || sync_now(journal, error);
}

void fbc_journal_leave(struct fbc_journal *journal) {
    if (journal->fd >= 0)
        close(journal->fd);
    journal->fd = -1;
}

void fbc_journal_free(struct fbc_journal *journal) {
    fbc_journal_leave(journal);
    free_buffer(journal);
}

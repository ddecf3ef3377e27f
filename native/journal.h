/* The writer of one transaction: the byte layout of docs/journal-format.md.
 *
 * It gathers records in a bounded buffer. What stays there is packed for a shared journal; else it
 * is written out block by block to a journal of its own. Positions can be remembered (a savepoint)
 * and cut back to. Not thread-safe: it belongs to the one transaction that writes it.
 */
#ifndef FIREBIRD_CDC_JOURNAL_H
#define FIREBIRD_CDC_JOURNAL_H

#include <stddef.h>
#include <stdint.h>

enum { FBC_FAILED = 0, FBC_OK = 1 }; /* a dead embedding answers 0 as well, so 0 must fail */

enum {
    FBC_FILE_BLOCK = 4096, /* that a torn write can take */
    FBC_HEAD = 136,        /* bytes of a transaction's head */
    FBC_BLOCK_HEADER = 40,
    FBC_RECORD_HEADER = 8,
    FBC_SEAL = FBC_BLOCK_HEADER + 64,   /* bytes */
    FBC_OWN_BYTES = 3 * FBC_FILE_BLOCK, /* of a journal's own file: room for a gap */
    FBC_BLOCK_TARGET = 128 * 1024,      /* a block is written out once it holds that many bytes */
    FBC_BLOCK_LIMIT = 16 * 1024 * 1024
};

enum fbc_record_kind {
    FBC_BEGIN = 1,
    FBC_TABLE = 2,
    FBC_INSERT = 3,
    FBC_UPDATE = 4,
    FBC_DELETE = 5,
    FBC_DDL = 6,
    FBC_SEQUENCE = 7,
    FBC_BLOB = 8,
    FBC_GAP = 9,
    FBC_PAD = 11
};

enum { FBC_BLOB_LAST = 1, FBC_BLOB_UNREADABLE = 2 };
enum { FBC_TABLE_UNRESOLVED = 2 };

/* What went wrong, for the status that the engine gets: one sentence. */
struct fbc_error {
    char text[512];
};

/* A place in the journal that it can be cut back to. */
struct fbc_position {
    uint64_t block_offset;
    size_t used;
    uint64_t events, records, block_first_event, blocks;
    uint64_t blobs;
    uint32_t previous_crc, block_records, tables;
    uint16_t block_flags;
};

struct fbc_journal_identity {
    unsigned char uuid[16], database_guid[16], owner[16], boot[16];
    uint64_t transaction;
    int64_t started_us;      /* since 1970, UTC */
    uint64_t database_inode; /* 0: unknown */
    const char *database;    /* its path, UTF-8; borrowed */
};

struct fbc_journal {
    int fd;        /* owned until fbc_journal_free; -1: all is in the buffer */
    char name[40]; /* uuid text, e.g. "6f2b9a54-0d1e-4c57-9a3b-2e7c41d8b0aa" */
    struct fbc_journal_identity identity;
    char *buffer;           /* block header and payload of the block being filled */
    size_t capacity;        /* bytes allocated at buffer */
    int header_written;     /* header and head are in the file */
    struct fbc_position at; /* where the next record goes; offsets count from the head */
    uint64_t sealed_at;     /* offset of the seal block, 0: not sealed */
    uint64_t catalogue_at;  /* offset of the catalogue, 0: none */
    uint64_t length;        /* offset just after those two, while sealed */
    uint64_t unsynced;      /* bytes written since write-back was last started */
    int is_untrusted;  /* a sync failed: the next one may say that all is well, yet it is not */
    uint64_t reserved; /* bytes of the file that are accounted for, */
    /* which is asked before it is written further; null: it may. Fails with ERROR. */
    int (*reserve)(struct fbc_journal *journal, uint64_t end, struct fbc_error *error);
    /* Called where the buffer is to be written and there is no file: sets FD. Fails with ERROR. */
    int (*take_file)(struct fbc_journal *journal, struct fbc_error *error);
    void (*is_in_file)(struct fbc_journal *journal); /* called once its beginning is written */
};

/* Definitions that were completed while the transaction ran: room for a block's header, then
 * TABLE records without flags. */
struct fbc_appendix {
    char *block;
    size_t payload; /* bytes, behind the header */
    uint32_t records;
};

/* fbc_journal_open begins a journal in the file FD, which it owns from then on; -1: in the
 * buffer. */
void fbc_journal_open(struct fbc_journal *journal, int fd, const char *name,
                      const struct fbc_journal_identity *identity);

/* fbc_record_begin reserves room for a record of at most LENGTH body bytes and returns where
 * its body goes, or null with ERROR set. fbc_record_end closes it with the bytes used. */
char *fbc_record_begin(struct fbc_journal *journal, size_t length, struct fbc_error *error);
void fbc_record_end(struct fbc_journal *journal, enum fbc_record_kind kind, unsigned flags,
                    unsigned table, size_t used);

/* fbc_journal_begin writes the BEGIN record: PATH and USER are UTF-8, not terminated. */
int fbc_journal_begin(struct fbc_journal *journal, const char *path, size_t path_length,
                      const char *user, size_t user_length, struct fbc_error *error);

/* fbc_journal_cut takes back all records after POSITION, which this journal gave out. */
int fbc_journal_cut(struct fbc_journal *journal, const struct fbc_position *position,
                    struct fbc_error *error);

/* fbc_journal_seal writes what is left, the seal, in a block of the file of its own, and, unless
 * CATALOGUE is null or empty, the catalogue in one write; nothing is synced. FLOOR: as
 * fbc_tickets_next returns it. */
int fbc_journal_seal(struct fbc_journal *journal, int64_t sealed_us, uint64_t floor,
                     const struct fbc_appendix *catalogue, struct fbc_error *error);

/* fbc_journal_pack makes what is in the buffer, all of it, a transaction of a shared journal, which
 * stays valid until the next record: HEAD has FBC_HEAD bytes, SEAL FBC_SEAL, and CATALOGUE,
 * which is null or empty where there is none, is closed. FLOOR: as fbc_tickets_next returns it. */
struct fbc_unit;
void fbc_journal_pack(struct fbc_journal *journal, unsigned char *head, char *seal,
                      int64_t sealed_us, uint64_t floor, const struct fbc_appendix *catalogue,
                      struct fbc_unit *unit);

/* fbc_head_place says in HEAD that it lies at OFFSET of journal UUID, of which all before SYNCED is
 * on disk. fbc_file_header fills the FIRST FBC_FILE_BLOCK bytes of a journal that IDENTITY tells
 * of, begun at BEGUN_US; IS_OWN: it is that one transaction's. */
void fbc_head_place(unsigned char *head, const unsigned char *uuid, uint64_t offset,
                    uint64_t synced);
void fbc_file_header(unsigned char *first, const struct fbc_journal_identity *identity,
                     int64_t begun_us, int is_own);

/* fbc_journal_sync_failed notes that a sync of the journal ended with ERROR_NUMBER: whatever a
 * later one says, no page of the file counts as written any more. Always fails, with ERROR. */
int fbc_journal_sync_failed(struct fbc_journal *journal, int error_number, struct fbc_error *error);

/* fbc_journal_break_seal makes the seal unreadable and waits until that is on disk. Needed
 * before anything but commit follows a prepare: the engine may mark a rolled back transaction
 * committed once its changes are undone, and recovery trusts an intact seal. */
int fbc_journal_break_seal(struct fbc_journal *journal, int sync, struct fbc_error *error);

/* fbc_journal_flush writes out what is in the buffer; nothing is synced. */
int fbc_journal_flush(struct fbc_journal *journal, struct fbc_error *error);

/* fbc_journal_void makes the head unreadable, so that the journal has no transaction, and waits
 * until that is on disk. Needed before a rollback goes on: see above; an unsealed journal that has
 * a head stands for a transaction whose end nobody told. */
int fbc_journal_void(struct fbc_journal *journal, int sync, struct fbc_error *error);

/* fbc_journal_limit_memory has all journals of the process together keep BYTES in memory: while
 * they have more, each that gets a record writes out what it has of more than 8 KiB. 0: no limit.
 */
void fbc_journal_limit_memory(uint64_t bytes);

/* fbc_journal_leave closes the descriptor, and with it gives the lock of the file back. */
void fbc_journal_leave(struct fbc_journal *journal);

/* fbc_journal_free releases the buffer and closes the descriptor, if still there. */
void fbc_journal_free(struct fbc_journal *journal);

/* fbc_error_set formats TEXT and appends the meaning of ERROR_NUMBER (0: none). */
__attribute__((format(printf, 3, 4))) void fbc_error_set(struct fbc_error *error, int error_number,
                                                         const char *text, ...);

static inline void fbc_put16(void *to, uint16_t value) {
    __builtin_memcpy(to, &value, 2);
}
static inline void fbc_put32(void *to, uint32_t value) {
    __builtin_memcpy(to, &value, 4);
}
static inline void fbc_put64(void *to, uint64_t value) {
    __builtin_memcpy(to, &value, 8);
}

#endif

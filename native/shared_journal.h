/* Shared journals: many small transactions of this process and one database in one file, in the
 * order of their prepare (docs/journal-format.md, version 2; docs/architecture.md has the rules).
 *
 * A transaction is in memory until its prepare, which appends it with one write and asks for a
 * sync; commit waits until one covers it. One sync serves all that were appended before it began.
 * What a sync has covered is never written again: the next transaction behind it begins in a new
 * block of the file. A rollback after the prepare appends a void.
 */
#ifndef FIREBIRD_CDC_SHARED_JOURNAL_H
#define FIREBIRD_CDC_SHARED_JOURNAL_H

#include <stdint.h>
#include <sys/uio.h>

#include "databases.h"
#include "journal.h"

enum {
    FBC_SHARED_MOST = 64 * 1024, /* a transaction that is larger has a journal of its own */
};

/* A sealed transaction, ready to be appended: its head lacks the place, which fills it in. */
struct fbc_unit {
    unsigned char *head; /* FBC_HEAD bytes, the first of PARTS */
    struct iovec parts[4];
    int count;
    uint64_t length, seal_end, catalogue; /* bytes; offset of the catalogue, 0: none */
    unsigned char uuid[16];
    uint64_t transaction;
};

/* Where a transaction lies that was prepared and has not ended. */
struct fbc_place {
    struct fbc_shared_file *file; /* null: nowhere */
    uint64_t offset, length, seal_end, catalogue;
    uint64_t end; /* up to which byte a sync has to cover the file */
    unsigned char uuid[16];
    uint64_t transaction;
};

/* fbc_shared_append appends UNIT, of DATABASE whose file has INODE, and starts a sync. FORMER, if
 * it is not null, is a place of it in a file of which a sync has failed: a void for that goes
 * along. Nothing is left of UNIT where it fails. */
int fbc_shared_append(struct fbc_database *database, uint64_t inode, const struct fbc_unit *unit,
                      const struct fbc_place *former, struct fbc_place *place,
                      struct fbc_error *error);

/* fbc_shared_await waits until PLACE is on disk; returns 0, or the errno of the sync that failed:
 * then it has to be appended once more, or made void. */
int fbc_shared_await(const struct fbc_place *place);

/* fbc_shared_void makes PLACE void and waits until that is on disk, then lets go of it. Where that
 * fails PLACE stays as it was, though there is a void in its file that may get to the disk. */
int fbc_shared_void(struct fbc_database *database, struct fbc_place *place,
                    struct fbc_error *error);

/* fbc_shared_let_go says that nothing more is written about PLACE, which is nowhere then. */
void fbc_shared_let_go(struct fbc_place *place);

/* fbc_shared_spare closes the journals of DATABASE, in which no session is left, where many are
 * open: a server's descriptors are not ours to use up. */
void fbc_shared_spare(struct fbc_database *database);

/* fbc_shared_uuid writes the uuid of the journal that PLACE is in. */
void fbc_shared_uuid(const struct fbc_place *place, unsigned char uuid[16]);

#endif

/* Slots of the transactions that are open in this process and have their changes in memory alone:
 * the file slots/<owner> in .firebird-cdc. The engine does not report the first phase of a
 * two-phase commit, so if the process is killed behind it, a slot is all that tells of the
 * transaction. */
#ifndef FIREBIRD_CDC_SLOTS_H
#define FIREBIRD_CDC_SLOTS_H

#include <stdint.h>

#include "databases.h"
#include "journal.h"

enum { FBC_SLOT = 512 }; /* bytes */

struct fbc_slot {
    unsigned char *content; /* mapped; null: no slot is taken */
    int fd;                 /* of its file */
    unsigned index;
};

/* fbc_slot_take notes TRANSACTION of DATABASE, whose file has INODE, in a free slot. */
int fbc_slot_take(struct fbc_slot *slot, const struct fbc_database *database, uint64_t inode,
                  uint64_t transaction, int64_t begun_us, struct fbc_error *error);

/* fbc_slot_free forgets it, if it was taken. */
void fbc_slot_free(struct fbc_slot *slot);

#endif

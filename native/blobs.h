/* The content of BLOBs and arrays of a row, as journal records. */
#ifndef FIREBIRD_CDC_BLOBS_H
#define FIREBIRD_CDC_BLOBS_H

#include "rows.h"

/* fbc_blob_write appends the content of BLOB or array ID, chunk by chunk, under the NUMBER that it
 * gives. The engine keeps an array as a BLOB that begins with a description of its elements and
 * bounds, and opens it as one. Content that the engine will not give is marked unreadable. Returns
 * FBC_OK, or FBC_FAILED with ERROR set if the journal can't be written. */
int fbc_blob_write(struct fbc_journal *journal, const struct fbc_source *source,
                   const struct fbi_quad *id, uint64_t *number, struct fbc_error *error);

#endif

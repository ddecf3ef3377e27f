/* Reads a database inside this process for one that has no password; see reading.c. */
#ifndef FIREBIRD_CDC_READING_H
#define FIREBIRD_CDC_READING_H

#include "bridge_api.h"

/* fbc_reading_attach attaches to DATABASE, without a password. Returns a handle, or null with the
 * reason in FAILURE, as all that follow. One thread at a time has a handle. */
void *fbc_reading_attach(const char *database, struct fbc_failure *failure);

/* fbc_reading_stand attaches as FIREBIRD_CDC, who has no rights, to stand first in the engine's
 * list (bridge/giving_way.py). Triggers ON CONNECT fire. */
void *fbc_reading_stand(const char *database, struct fbc_failure *failure);

/* fbc_reading_detach ends the attachment and frees the handle; free first what was opened by it. */
void fbc_reading_detach(void *reading);

/* fbc_reading_cancel has the engine end what another thread does with READING. */
void fbc_reading_cancel(void *reading);

/* fbc_reading_begin starts a transaction; fbc_reading_end ends it, whatever the engine says. */
void *fbc_reading_begin(void *reading, const unsigned char *tpb, uint32_t length,
                        struct fbc_failure *failure);
void fbc_reading_end(void *reading, void *transaction);

/* fbc_reading_info asks for information ITEMS of a transaction, or with null of the database. */
int fbc_reading_info(void *reading, void *transaction, const unsigned char *items, uint32_t count,
                     unsigned char *answer, uint32_t size, struct fbc_failure *failure);

/* fbc_reading_prepare prepares SQL and writes to SHOWN, of SIZE bytes, what its rows are: u32 type
 * of the statement, u32 parameters, u32 bytes of a row, u32 columns, and of each column u32 SQL
 * type, i32 sub-type, u32 length, i32 scale, u32 character set, u32 offset of the value and u32 of
 * the null flag in a row, u16 length of its name, and that. */
void *fbc_reading_prepare(void *reading, void *transaction, const char *sql, uint32_t length,
                          unsigned char *shown, uint32_t size, uint32_t *used,
                          struct fbc_failure *failure);

/* fbc_reading_open opens the cursor of a statement, fbc_reading_fetch writes its next rows to TO,
 * as many as fit into SIZE bytes. Returns how many, or -1; IS_END: there are no more. */
int fbc_reading_open(void *reading, void *transaction, void *statement,
                     struct fbc_failure *failure);
int64_t fbc_reading_fetch(void *reading, void *statement, unsigned char *to, uint64_t size,
                          int32_t *is_end, struct fbc_failure *failure);
void fbc_reading_free(void *reading, void *statement);

/* fbc_reading_open_blob opens the BLOB of 8 bytes ID; fbc_reading_blob_piece reads its next bytes.
 * Returns how many, or -1; IS_END: there are no more. fbc_reading_blob_length returns how many it
 * has as a whole, or -1. */
void *fbc_reading_open_blob(void *reading, void *transaction, const unsigned char *id,
                            struct fbc_failure *failure);
int64_t fbc_reading_blob_piece(void *reading, void *blob, unsigned char *to, uint32_t size,
                               int32_t *is_end, struct fbc_failure *failure);
int64_t fbc_reading_blob_length(void *reading, void *blob, struct fbc_failure *failure);
void fbc_reading_close_blob(void *reading, void *blob);

#endif

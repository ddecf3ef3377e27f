/* Asks the engine what became of transactions; see own_attachment.c. */
#ifndef FIREBIRD_CDC_OWN_ATTACHMENT_H
#define FIREBIRD_CDC_OWN_ATTACHMENT_H

#include <stddef.h>
#include <stdint.h>

#include "firebird_abi.h"

/* Answers beyond those of RDB$GET_TRANSACTION_CN (0 active, -1 limbo, -2 dead, 1.. committed). */
enum { FBC_ANSWER_UNKNOWN = -3 };

/* fbc_own_attachment_init remembers the engine's master interface. */
void fbc_own_attachment_init(struct fbi_master *master);

/* fbc_own_attachment_end says that the engine unloads the plugin: nobody is asked from then on. */
void fbc_own_attachment_end(void);

/* fbc_engine_ends tells whether the engine is shutting down, with a sentence in ERROR: it must not
 * be asked any more then, and closes by itself what is open. */
int fbc_engine_ends(char *error, int error_size);

/* fbc_engine_status makes a status, to be disposed of; fbc_engine_words writes what is in one. */
struct fbi_status *fbc_engine_status(void);
void fbc_engine_words(struct fbi_status *status, char *text, int size);

/* fbc_engine_attach attaches to DATABASE inside this process, without a password: with the rights
 * of SYSDBA and without triggers, or as a user who has none. DBAs see it as PROCESS. Returns null
 * with the reason in STATUS. */
struct fbi_attachment *fbc_engine_attach(struct fbi_status *status, const char *database,
                                         const char *process, int has_rights);
void fbc_engine_detach(struct fbi_status *status, struct fbi_attachment *attachment);

/* fbc_own_attachment_open attaches to DATABASE inside this process, without a password. Returns a
 * handle, or null with the reason in ERROR (of ERROR_SIZE bytes). */
void *fbc_own_attachment_open(const char *database, char *error, int error_size);

/* fbc_own_attachment_ask writes what became of COUNT transactions to ANSWERS, once that is on disk.
 * Returns 1, or 0 with the reason in ERROR: close the attachment then. */
int fbc_own_attachment_ask(void *own, const uint64_t *transactions, int64_t *answers, int count,
                           char *error, int error_size);

/* fbc_own_attachment_begin_reading has fbc_own_attachment_describe and fbc_own_attachment_select
 * work in one transaction, which is of one state of the database, until
 * fbc_own_attachment_end_reading; else each takes a number of its own. Returns 1, or 0 with the
 * reason in ERROR: close the attachment then. */
int fbc_own_attachment_begin_reading(void *own, char *error, int error_size);
void fbc_own_attachment_end_reading(void *own);

/* fbc_own_attachment_describe completes a table definition of LENGTH bytes in a buffer of SIZE
 * bytes (catalogue.h). Returns its new length, 0 if the table is gone, or -1 with the reason in
 * ERROR: close the attachment then. ERROR with a length says why no column has a default. */
int fbc_own_attachment_describe(void *own, char *definition, int length, int size, char *error,
                                int error_size);

/* fbc_own_attachment_select asks a question about the system tables (fbc_catalogue_select). Returns
 * 1 and the rows in a buffer to be freed with fbc_own_attachment_free, or 0 with the reason in
 * ERROR: close the attachment then. */
int fbc_own_attachment_select(void *own, const char *select, int columns, char **rows,
                              size_t *length, char *error, int error_size);
void fbc_own_attachment_free(char *rows);

/* fbc_own_attachment_close ends the attachment and frees the handle. */
void fbc_own_attachment_close(void *own);

#endif

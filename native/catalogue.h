/* What records do not show of their tables: key, column order, NOT NULL, precision.
 *
 * It is read from the system tables by the bridge's own thread, on an attachment of ours, never
 * inside a callback of the engine. What was completed once is kept for the process, so that
 * later transactions write complete definitions at once.
 */
#ifndef FIREBIRD_CDC_CATALOGUE_H
#define FIREBIRD_CDC_CATALOGUE_H

#include "rows.h"

/* fbc_definition_complete completes DEFINITION, the body of a TABLE record as a shape has it, in
 * a buffer of SIZE bytes; *LENGTH grows by its order list, and becomes 0 if the table is gone. */
int fbc_definition_complete(const struct fbc_source *source, char *definition, size_t *length,
                            size_t size, struct fbc_error *error);

/* fbc_catalogue_find returns the complete form of the definition SHOWN by records, as of
 * GENERATION of the system tables, for the caller to free; null if it is not known. */
char *fbc_catalogue_find(unsigned database, uint64_t generation, const char *shown,
                         size_t shown_length, size_t *length);

/* fbc_catalogue_store remembers it, and forgets those of other generations. */
void fbc_catalogue_store(unsigned database, uint64_t generation, const char *shown,
                         size_t shown_length, const char *complete, size_t length);

/* fbc_catalogue_version grows with every definition that is stored. */
uint64_t fbc_catalogue_version(void);

#endif

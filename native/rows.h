/* Table shapes and row images: how a row that the engine hands over becomes journal bytes.
 *
 * A shape is what one table looked like at one time: its columns in position order, how each
 * is stored, and its key. It is read from the system tables through the user's own attachment
 * and transaction, so it is the state that the change itself saw. Shapes belong to a session.
 */
#ifndef FIREBIRD_CDC_ROWS_H
#define FIREBIRD_CDC_ROWS_H

#include <stdint.h>

#include "firebird_abi.h"
#include "journal.h"

/* How a value is stored in a row image (docs/journal-format.md, storage codes). */
enum fbc_storage {
    FBC_SMALLINT = 1,
    FBC_INTEGER,
    FBC_BIGINT,
    FBC_INT128,
    FBC_FLOAT,
    FBC_DOUBLE,
    FBC_BOOLEAN,
    FBC_DATE,
    FBC_TIME,
    FBC_TIMESTAMP,
    FBC_TIME_TZ,
    FBC_TIMESTAMP_TZ,
    FBC_DECFLOAT16,
    FBC_DECFLOAT34,
    FBC_TEXT,
    FBC_PADDED_TEXT,
    FBC_OCTETS,
    FBC_BLOB_NUMBER,
    FBC_ARRAY_NUMBER,
    FBC_RAW
};

struct fbc_column {
    unsigned field;    /* index in the engine's record */
    unsigned sql_type; /* without the nullable bit */
    unsigned length;   /* bytes in the engine */
    unsigned charset;
    enum fbc_storage storage;
};

struct fbc_shape {
    struct fbc_shape *next;
    char *name;           /* UTF-8 */
    uint64_t id;          /* never given twice in this process */
    uint64_t generation;  /* of the catalogue when it was read */
    unsigned field_count; /* fields of the engine's record, computed ones included */
    unsigned column_count;
    unsigned bitmap_size, fixed_size;
    size_t largest_image; /* bytes */
    unsigned blob_columns;
    char *definition; /* body of its TABLE record */
    size_t definition_length;
    struct fbc_column columns[];
};

/* Where a session reads from: all borrowed, valid during one callback of the engine. */
struct fbc_source {
    struct fbi_attachment *attachment;
    struct fbi_transaction *transaction;
    struct fbi_status *status;
};

/* fbc_shape_read makes the shape of TABLE (UTF-8) as RECORD shows it, with names, order,
 * nullability and keys from the system tables. The caller frees it with fbc_shape_free. */
struct fbc_shape *fbc_shape_read(const struct fbc_source *source, const char *table,
                                 struct fbi_replicated_record *record, uint64_t generation,
                                 struct fbc_error *error);
void fbc_shape_free(struct fbc_shape *shape);

/* fbc_row_write appends one row change to JOURNAL, its BLOBs first. OLD or NEW is null for an
 * insert or a delete. TABLE is the shape's number in this journal. Returns FBC_OK, FBC_FAILED
 * with ERROR set, or FBC_STALE if a record no longer has the fields of SHAPE: nothing of the
 * row is in the journal then, read the shape anew. */
enum { FBC_STALE = 2 };
int fbc_row_write(struct fbc_journal *journal, const struct fbc_source *source,
                  const struct fbc_shape *shape, unsigned table,
                  struct fbi_replicated_record *old_record,
                  struct fbi_replicated_record *new_record, struct fbc_error *error);

/* fbc_text_of runs SELECT, which returns one row of VARCHAR OCTETS columns, and copies them,
 * zero-terminated, to TEXTS (each of SIZE bytes). Returns FBC_FAILED with ERROR set. */
int fbc_text_of(const struct fbc_source *source, const char *select, char (*texts)[1024],
                unsigned count, struct fbc_error *error);

#endif

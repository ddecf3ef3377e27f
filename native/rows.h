/* Table shapes and row images: how a row that the engine hands over becomes journal bytes.
 *
 * A shape is what a record shows of its table: names, types and how each column is stored. What
 * it does not show (key, order, NOT NULL) is not asked of the engine here: a statement that is
 * run inside a callback can wait for a lock that is only given up once the callback returns.
 * The bridge asks later and completes the definition (catalogue.h). Shapes belong to a session.
 */
#ifndef FIREBIRD_CDC_ROWS_H
#define FIREBIRD_CDC_ROWS_H

#include <stdint.h>

#include "firebird_abi.h"
#include "journal.h"

/* How a value is stored in a row image (docs/journal-format.md, storage codes). */
enum { FBC_COLUMN_BYTES = 20 }; /* of a column in a TABLE record, after its name */

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
    int sub_type, scale;
    enum fbc_storage storage;
    char *name; /* UTF-8 */
};

struct fbc_shape {
    struct fbc_shape *next;
    char *name;           /* UTF-8 */
    uint64_t id;          /* never given twice in this process */
    uint64_t generation;  /* of the system tables when it was made */
    uint64_t version;     /* of the completed definitions when one was looked for */
    int is_resolved;      /* the definition is complete */
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

/* fbc_shape_of makes the shape of TABLE (UTF-8) that RECORD shows. The caller frees it with
 * fbc_shape_free. */
struct fbc_shape *fbc_shape_of(const char *table, struct fbi_replicated_record *record,
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

#endif

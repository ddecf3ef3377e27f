/* Table shapes and row images; see rows.h. */
#define _GNU_SOURCE
#include "rows.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NOT_NULL = 1, IDENTITY = 2 }; /* column flags of a TABLE record */
enum { MOST_FIELDS = 32768, MOST_BLOB_COLUMNS = 4096, BLOB_CHUNK = 60 * 1024 };
enum { MOST_SELECT_COLUMNS = 8, MOST_MESSAGE = 16 * 1024, DIALECT = 3 };

/* ---- Reading the system tables ------------------------------------------------------------ */

/* Put the engine's own words behind TEXT, as far as it gave any. */
static void engine_error(struct fbc_error *error, const struct fbc_source *source,
                         const char *text) {
    const intptr_t *vector = source->status->vt->get_errors(source->status);
    const char *words = "";
    intptr_t code = vector && vector[0] == FBI_ARG_GDS ? vector[1] : 0;
    for (; vector && vector[0] != FBI_ARG_END; vector += 2)
        if (vector[0] == FBI_ARG_STRING) {
            words = (const char *)vector[1];
            break;
        }
    fbc_error_set(error, 0, "%s (engine error %ld %s)", text, (long)code, words);
}

static int failed(const struct fbc_source *source) {
    return (source->status->vt->get_state(source->status) & FBI_STATE_ERRORS) != 0;
}

struct cursor {
    const struct fbc_source *source;
    struct fbi_result_set *rows;
    unsigned offsets[MOST_SELECT_COLUMNS], null_offsets[MOST_SELECT_COLUMNS];
    _Alignas(16) unsigned char message[MOST_MESSAGE];
};

static int cursor_open(struct cursor *cursor, const struct fbc_source *source, const char *select,
                       unsigned columns, struct fbc_error *error) {
    struct fbi_attachment *attachment = source->attachment;
    struct fbi_status *status = source->status;
    cursor->source = source;
    status->vt->init(status);
    cursor->rows = attachment->vt->open_cursor(attachment, status, source->transaction, 0, select,
                                               DIALECT, NULL, NULL, NULL, NULL, 0);
    if (failed(source) || !cursor->rows) {
        engine_error(error, source, "cannot read the system tables");
        return FBC_FAILED;
    }
    struct fbi_message_metadata *metadata = cursor->rows->vt->get_metadata(cursor->rows, status);
    int fits = !failed(source) && metadata &&
               metadata->vt->get_message_length(metadata, status) <= MOST_MESSAGE;
    for (unsigned i = 0; fits && i < columns; i++) {
        cursor->offsets[i] = metadata->vt->get_offset(metadata, status, i);
        cursor->null_offsets[i] = metadata->vt->get_null_offset(metadata, status, i);
    }
    if (metadata)
        metadata->vt->release(metadata);
    if (!fits || failed(source)) {
        engine_error(error, source, "cannot read the system tables");
        return FBC_FAILED;
    }
    return FBC_OK;
}

static void cursor_close(struct cursor *cursor) {
    struct fbi_result_set *rows = cursor->rows;
    struct fbi_status *status = cursor->source->status;
    if (!rows)
        return;
    status->vt->init(status);
    if (rows->vt->version >= FBI_RESULT_SET_HAS_CLOSE)
        rows->vt->close(rows, status);
    else
        rows->vt->deprecated_close(rows, status);
    if (failed(cursor->source))
        rows->vt->release(rows);
    cursor->rows = NULL;
}

/* Returns 1 with a row in the message, 0 at the end, -1 with ERROR set. */
static int cursor_next(struct cursor *cursor, struct fbc_error *error) {
    struct fbi_status *status = cursor->source->status;
    status->vt->init(status);
    int result = cursor->rows->vt->fetch_next(cursor->rows, status, cursor->message);
    if (failed(cursor->source)) {
        engine_error(error, cursor->source, "cannot read the system tables");
        return -1;
    }
    return result == FBI_RESULT_OK;
}

static int cursor_is_null(const struct cursor *cursor, unsigned column) {
    int16_t flag;
    memcpy(&flag, cursor->message + cursor->null_offsets[column], 2);
    return flag != 0;
}

static int32_t cursor_int(const struct cursor *cursor, unsigned column) {
    int32_t value = 0;
    if (!cursor_is_null(cursor, column))
        memcpy(&value, cursor->message + cursor->offsets[column], 4);
    return value;
}

static size_t cursor_text(const struct cursor *cursor, unsigned column, char *to, size_t size) {
    uint16_t length = 0;
    if (!cursor_is_null(cursor, column))
        memcpy(&length, cursor->message + cursor->offsets[column], 2);
    if (length >= size)
        length = (uint16_t)(size - 1);
    memcpy(to, cursor->message + cursor->offsets[column] + 2, length);
    to[length] = 0;
    return length;
}

int fbc_text_of(const struct fbc_source *source, const char *select, char (*texts)[1024],
                unsigned count, struct fbc_error *error) {
    struct cursor *cursor = calloc(1, sizeof *cursor);
    if (!cursor) {
        fbc_error_set(error, 0, "no memory to read the system tables");
        return FBC_FAILED;
    }
    int done = cursor_open(cursor, source, select, count, error);
    if (done) {
        int row = cursor_next(cursor, error);
        if (row == 0)
            fbc_error_set(error, 0, "the engine returned no row for: %.200s", select);
        done = row == 1;
        for (unsigned i = 0; done && i < count; i++)
            cursor_text(cursor, i, texts[i], sizeof *texts);
    }
    cursor_close(cursor);
    free(cursor);
    return done ? FBC_OK : FBC_FAILED;
}

/* What the system tables say of one column beyond what the record shows. */
struct catalogue_column {
    unsigned field;
    int precision, char_length, not_null, identity, key_position;
};

/* TABLE as a literal that needs no quoting and no character set of the attachment. */
static void name_literal(const char *table, char *literal, size_t size) {
    size_t used = (size_t)snprintf(literal, size, "_UTF8 x'");
    for (; *table && used + 4 < size; table++)
        used += (size_t)snprintf(literal + used, size - used, "%02X", (unsigned char)*table);
    snprintf(literal + used, size - used, "'");
}

static int read_columns(struct cursor *cursor, const struct fbc_source *source, const char *literal,
                        struct catalogue_column *columns, unsigned *count,
                        struct fbc_error *error) {
    char select[2048];
    snprintf(select, sizeof select,
             "SELECT CAST(R.RDB$FIELD_ID AS INTEGER), CAST(F.RDB$FIELD_PRECISION AS INTEGER),"
             " CAST(F.RDB$CHARACTER_LENGTH AS INTEGER),"
             " CAST(COALESCE(R.RDB$NULL_FLAG, F.RDB$NULL_FLAG, 0) AS INTEGER),"
             " CAST(IIF(R.RDB$IDENTITY_TYPE IS NULL, 0, 1) AS INTEGER)"
             " FROM RDB$RELATION_FIELDS R"
             " JOIN RDB$FIELDS F ON F.RDB$FIELD_NAME = R.RDB$FIELD_SOURCE"
             " WHERE R.RDB$RELATION_NAME = %s"
             " ORDER BY R.RDB$FIELD_POSITION, R.RDB$FIELD_ID",
             literal);
    int row = -1;
    if (cursor_open(cursor, source, select, 5, error))
        while ((row = cursor_next(cursor, error)) == 1 && *count < MOST_FIELDS)
            columns[(*count)++] = (struct catalogue_column){
                .field = (unsigned)cursor_int(cursor, 0),
                .precision = cursor_int(cursor, 1),
                .char_length = cursor_int(cursor, 2),
                .not_null = cursor_int(cursor, 3) != 0,
                .identity = cursor_int(cursor, 4),
            };
    cursor_close(cursor);
    return row == 0 ? FBC_OK : FBC_FAILED;
}

/* Set key_position of COLUMNS from the primary key, or else from the first unique constraint
 * by name whose columns are all NOT NULL. *KIND: 0 none, 1 primary, 2 unique. */
static int read_key(struct cursor *cursor, const struct fbc_source *source, const char *literal,
                    struct catalogue_column *columns, unsigned count, int *kind,
                    struct fbc_error *error) {
    char select[2048], current[256] = "", name[256];
    snprintf(select, sizeof select,
             "SELECT CAST(IIF(C.RDB$CONSTRAINT_TYPE = 'PRIMARY KEY', 1, 2) AS INTEGER),"
             " CAST(TRIM(C.RDB$CONSTRAINT_NAME) AS VARCHAR(252) CHARACTER SET OCTETS),"
             " CAST(R.RDB$FIELD_ID AS INTEGER)"
             " FROM RDB$RELATION_CONSTRAINTS C"
             " JOIN RDB$INDEX_SEGMENTS S ON S.RDB$INDEX_NAME = C.RDB$INDEX_NAME"
             " JOIN RDB$RELATION_FIELDS R ON R.RDB$RELATION_NAME = C.RDB$RELATION_NAME"
             "  AND R.RDB$FIELD_NAME = S.RDB$FIELD_NAME"
             " WHERE C.RDB$RELATION_NAME = %s"
             "  AND C.RDB$CONSTRAINT_TYPE IN ('PRIMARY KEY', 'UNIQUE')"
             " ORDER BY 1, C.RDB$CONSTRAINT_NAME, S.RDB$FIELD_POSITION",
             literal);
    int row = -1, usable = 0, position = 0, done = 0;
    *kind = 0;
    if (cursor_open(cursor, source, select, 3, error))
        while ((row = cursor_next(cursor, error)) == 1) {
            if (done)
                continue;
            cursor_text(cursor, 1, name, sizeof name);
            if (strcmp(name, current) != 0) {
                if (*kind && usable) {
                    done = 1;
                    continue;
                }
                for (unsigned i = 0; i < count; i++)
                    columns[i].key_position = 0;
                snprintf(current, sizeof current, "%s", name);
                *kind = cursor_int(cursor, 0);
                usable = 1;
                position = 0;
            }
            for (unsigned i = 0; i < count; i++)
                if (columns[i].field == (unsigned)cursor_int(cursor, 2)) {
                    columns[i].key_position = ++position;
                    usable = usable && (columns[i].not_null || *kind == 1);
                }
        }
    cursor_close(cursor);
    if (row != 0)
        return FBC_FAILED;
    if (!usable) {
        *kind = 0;
        for (unsigned i = 0; i < count; i++)
            columns[i].key_position = 0;
    }
    return FBC_OK;
}

/* ---- Shapes ------------------------------------------------------------------------------- */

static enum fbc_storage storage_of(unsigned sql_type, unsigned charset) {
    switch (sql_type) {
    case FBI_SQL_SHORT:
        return FBC_SMALLINT;
    case FBI_SQL_LONG:
        return FBC_INTEGER;
    case FBI_SQL_INT64:
        return FBC_BIGINT;
    case FBI_SQL_INT128:
        return FBC_INT128;
    case FBI_SQL_FLOAT:
        return FBC_FLOAT;
    case FBI_SQL_DOUBLE:
    case FBI_SQL_D_FLOAT:
        return FBC_DOUBLE;
    case FBI_SQL_BOOLEAN:
        return FBC_BOOLEAN;
    case FBI_SQL_TYPE_DATE:
        return FBC_DATE;
    case FBI_SQL_TYPE_TIME:
        return FBC_TIME;
    case FBI_SQL_TIMESTAMP:
        return FBC_TIMESTAMP;
    case FBI_SQL_TIME_TZ:
        return FBC_TIME_TZ;
    case FBI_SQL_TIMESTAMP_TZ:
        return FBC_TIMESTAMP_TZ;
    case FBI_SQL_DEC16:
        return FBC_DECFLOAT16;
    case FBI_SQL_DEC34:
        return FBC_DECFLOAT34;
    case FBI_SQL_VARYING:
        return charset == FBI_CHARSET_OCTETS ? FBC_OCTETS : FBC_TEXT;
    case FBI_SQL_TEXT:
        return charset == FBI_CHARSET_OCTETS ? FBC_OCTETS : FBC_PADDED_TEXT;
    case FBI_SQL_BLOB:
        return FBC_BLOB_NUMBER;
    case FBI_SQL_ARRAY:
        return FBC_ARRAY_NUMBER;
    default:
        return FBC_RAW;
    }
}

/* Bytes of the fixed field; a variable column has its length there. */
static unsigned fixed_width(enum fbc_storage storage) {
    static const unsigned char widths[] = {0, 2,  4, 8,  16, 4, 8, 1, 4, 4, 8,
                                           6, 10, 8, 16, 2,  2, 2, 8, 8, 2};
    return widths[storage];
}

static int is_variable(enum fbc_storage storage) {
    return storage == FBC_TEXT || storage == FBC_PADDED_TEXT || storage == FBC_OCTETS ||
           storage == FBC_RAW;
}

static int is_numeric(enum fbc_storage storage) {
    return (storage >= FBC_SMALLINT && storage <= FBC_INT128) || storage == FBC_DOUBLE;
}

static char *put_column(char *to, const struct fbc_column *column,
                        const struct catalogue_column *known, struct fbi_replicated_field *field) {
    const char *name = field->vt->get_name(field);
    size_t name_length = name ? strlen(name) : 0;
    int has_sub_type = is_numeric(column->storage) || column->storage == FBC_BLOB_NUMBER;
    int scale = is_numeric(column->storage) ? field->vt->get_scale(field) : 0;
    fbc_put16(to, (uint16_t)name_length);
    memcpy(to + 2, name, name_length);
    to += 2 + name_length;
    fbc_put16(to, (uint16_t)column->sql_type);
    fbc_put16(to + 2, (uint16_t)(has_sub_type ? field->vt->get_sub_type(field) : 0));
    fbc_put16(to + 4, (uint16_t)scale);
    fbc_put32(to + 6, column->length);
    fbc_put16(to + 10, (uint16_t)column->charset);
    fbc_put16(to + 12, (uint16_t)known->char_length);
    fbc_put16(to + 14, (uint16_t)known->precision);
    to[16] = (char)((known->not_null ? NOT_NULL : 0) | (known->identity ? IDENTITY : 0));
    to[17] = (char)known->key_position;
    to[18] = (char)column->storage;
    to[19] = 0;
    return to + 20;
}

static struct fbc_shape *build_shape(const char *table, struct fbi_replicated_record *record,
                                     const struct catalogue_column *known, unsigned count,
                                     int key_kind) {
    enum { LONGEST_NAME = 255, COLUMN_BYTES = 2 + LONGEST_NAME + 20 };
    static _Atomic uint64_t last_id;
    size_t name_length = strlen(table);
    struct fbc_shape *shape = calloc(1, sizeof *shape + count * sizeof *shape->columns);
    char *definition = malloc(6 + name_length + (size_t)count * COLUMN_BYTES);
    if (!shape || !definition || !(shape->name = strdup(table))) {
        free(shape);
        free(definition);
        return NULL;
    }
    shape->id = ++last_id;
    shape->field_count = record->vt->get_count(record);
    shape->definition = definition;

    char *to = definition + 2 + name_length + 4;
    for (unsigned i = 0; i < count; i++) {
        struct fbi_replicated_field *field = known[i].field < shape->field_count
                                                 ? record->vt->get_field(record, known[i].field)
                                                 : NULL;
        const char *name = field ? field->vt->get_name(field) : NULL;
        if (!name || strlen(name) > LONGEST_NAME)
            continue; /* computed, or not yet in the format of this record */
        struct fbc_column *column = &shape->columns[shape->column_count++];
        column->field = known[i].field;
        column->sql_type = field->vt->get_type(field) & ~1u;
        column->length = field->vt->get_length(field);
        column->charset = column->sql_type == FBI_SQL_VARYING || column->sql_type == FBI_SQL_TEXT ||
                                  column->sql_type == FBI_SQL_BLOB
                              ? field->vt->get_charset(field)
                              : 0;
        column->storage = storage_of(column->sql_type, column->charset);
        shape->fixed_size += fixed_width(column->storage);
        if (is_variable(column->storage))
            shape->largest_image += column->length;
        if (column->storage == FBC_BLOB_NUMBER || column->storage == FBC_ARRAY_NUMBER)
            shape->blob_columns++;
        to = put_column(to, column, &known[i], field);
    }
    shape->bitmap_size = (shape->column_count + 7) / 8;
    shape->largest_image += shape->bitmap_size + shape->fixed_size;
    shape->definition_length = (size_t)(to - definition);
    fbc_put16(definition, (uint16_t)name_length);
    memcpy(definition + 2, table, name_length);
    definition[2 + name_length] = (char)key_kind;
    definition[3 + name_length] = 0;
    fbc_put16(definition + 4 + name_length, (uint16_t)shape->column_count);
    return shape;
}

struct fbc_shape *fbc_shape_read(const struct fbc_source *source, const char *table,
                                 struct fbi_replicated_record *record, uint64_t generation,
                                 struct fbc_error *error) {
    char literal[1024];
    struct cursor *cursor = calloc(1, sizeof *cursor);
    struct catalogue_column *known = calloc(MOST_FIELDS, sizeof *known);
    struct fbc_shape *shape = NULL;
    unsigned count = 0;
    int key_kind = 0;
    name_literal(table, literal, sizeof literal);
    if (!cursor || !known)
        fbc_error_set(error, 0, "no memory to read the columns of %s", table);
    else if (read_columns(cursor, source, literal, known, &count, error) &&
             read_key(cursor, source, literal, known, count, &key_kind, error)) {
        shape = build_shape(table, record, known, count, key_kind);
        if (!shape)
            fbc_error_set(error, 0, "no memory for the columns of %s", table);
        else if (shape->column_count == 0 || shape->blob_columns > MOST_BLOB_COLUMNS) {
            fbc_error_set(error, 0, "table %s: none of its columns can be captured", table);
            fbc_shape_free(shape);
            shape = NULL;
        } else
            shape->generation = generation;
    }
    free(known);
    free(cursor);
    return shape;
}

void fbc_shape_free(struct fbc_shape *shape) {
    if (!shape)
        return;
    free(shape->name);
    free(shape->definition);
    free(shape);
}

static int is_field_of(const struct fbc_column *column, struct fbi_replicated_field *field) {
    return (field->vt->get_type(field) & ~1u) == column->sql_type &&
           field->vt->get_length(field) == column->length;
}

/* Whether RECORD has the fields that SHAPE was read from; null fits. */
static int fits(const struct fbc_shape *shape, struct fbi_replicated_record *record) {
    if (!record)
        return 1;
    if (record->vt->get_count(record) != shape->field_count)
        return 0;
    for (unsigned i = 0; i < shape->column_count; i++) {
        struct fbi_replicated_field *field = record->vt->get_field(record, shape->columns[i].field);
        if (!field || !is_field_of(&shape->columns[i], field))
            return 0;
    }
    return 1;
}

/* ---- Row images --------------------------------------------------------------------------- */

static void put_fixed(char *to, enum fbc_storage storage, const unsigned char *data) {
    enum { UNITS_PER_DAY = 864000000 }; /* of 1/10000 s */
    if (storage == FBC_TIMESTAMP || storage == FBC_TIMESTAMP_TZ) {
        int32_t days;
        uint32_t units;
        memcpy(&days, data, 4);
        memcpy(&units, data + 4, 4);
        fbc_put64(to, (uint64_t)((int64_t)days * UNITS_PER_DAY + units));
        if (storage == FBC_TIMESTAMP_TZ)
            memcpy(to + 8, data + 8, 2);
    } else if (storage == FBC_BOOLEAN)
        *to = *data != 0;
    else
        memcpy(to, data, fixed_width(storage));
}

/* Bytes of a variable value without what the reader can add again. */
static const unsigned char *variable_value(const struct fbc_column *column,
                                           const unsigned char *data, uint16_t *length) {
    if (column->sql_type == FBI_SQL_VARYING) {
        memcpy(length, data, 2);
        if (*length > column->length)
            *length = (uint16_t)column->length;
        return data + 2;
    }
    unsigned used = column->length;
    if (column->storage == FBC_PADDED_TEXT)
        while (used && data[used - 1] == ' ')
            used--;
    *length = (uint16_t)used;
    return data;
}

/* Write the image of RECORD at TO, which has room for the shape's largest one. BLOBS holds
 * the numbers of its BLOBs in column order. Returns where the image ends, or null if RECORD
 * does not have the fields of SHAPE. Asks for each field once: this is the cost of a row. */
static char *put_image(char *to, const struct fbc_shape *shape,
                       struct fbi_replicated_record *record, const uint64_t *blobs) {
    char *fixed = to + shape->bitmap_size;
    char *variable = fixed + shape->fixed_size;
    if (record->vt->get_count(record) != shape->field_count)
        return NULL;
    memset(to, 0, shape->bitmap_size + shape->fixed_size);
    for (unsigned i = 0; i < shape->column_count; i++) {
        const struct fbc_column *column = &shape->columns[i];
        struct fbi_replicated_field *field = record->vt->get_field(record, column->field);
        if (!field || !is_field_of(column, field))
            return NULL;
        const unsigned char *data = field->vt->get_data(field);
        int is_blob = column->storage == FBC_BLOB_NUMBER || column->storage == FBC_ARRAY_NUMBER;
        if (!data)
            to[i / 8] |= (char)(1 << (i % 8));
        else if (is_blob)
            fbc_put64(fixed, *blobs);
        else if (is_variable(column->storage)) {
            uint16_t length;
            const unsigned char *value = variable_value(column, data, &length);
            fbc_put16(fixed, length);
            memcpy(variable, value, length);
            variable += length;
        } else
            put_fixed(fixed, column->storage, data);
        blobs += is_blob;
        fixed += fixed_width(column->storage);
    }
    return variable;
}

static void blob_close(const struct fbc_source *source, struct fbi_blob *blob) {
    source->status->vt->init(source->status);
    if (blob->vt->version >= FBI_BLOB_HAS_CLOSE)
        blob->vt->close(blob, source->status);
    else
        blob->vt->deprecated_close(blob, source->status);
    if (failed(source))
        blob->vt->release(blob);
}

/* Append the content of one BLOB, chunk by chunk. Content that the engine will not give is
 * marked unreadable; only a journal that can't be written is an error. */
static int write_blob(struct fbc_journal *journal, const struct fbc_source *source,
                      const struct fbi_quad *id, int is_array, uint64_t *number,
                      struct fbc_error *error) {
    struct fbi_status *status = source->status;
    struct fbi_quad copy = *id;
    struct fbi_blob *blob = NULL;
    int readable = !is_array, more = 0;
    *number = ++journal->at.blobs;
    if (readable && (copy.high || copy.low)) {
        status->vt->init(status);
        blob = source->attachment->vt->open_blob(source->attachment, status, source->transaction,
                                                 &copy, 0, NULL);
        readable = more = !failed(source) && blob;
    }
    do {
        char *body = fbc_record_begin(journal, 8 + BLOB_CHUNK, error);
        if (!body) {
            if (blob)
                blob_close(source, blob);
            return FBC_FAILED;
        }
        size_t used = 0;
        while (more && used < BLOB_CHUNK) {
            unsigned got = 0;
            status->vt->init(status);
            int result = blob->vt->get_segment(blob, status, (unsigned)(BLOB_CHUNK - used),
                                               body + 8 + used, &got);
            if (failed(source) || result < 0)
                readable = more = 0;
            else if (result == FBI_RESULT_NO_DATA)
                more = 0;
            used += got;
        }
        fbc_put64(body, *number);
        fbc_record_end(journal, FBC_BLOB,
                       (more ? 0 : FBC_BLOB_LAST) | (readable ? 0 : FBC_BLOB_UNREADABLE), 0,
                       8 + used);
    } while (more);
    if (blob)
        blob_close(source, blob);
    return FBC_OK;
}

static const struct fbi_quad *blob_id(const struct fbc_column *column,
                                      struct fbi_replicated_record *record) {
    struct fbi_replicated_field *field = record->vt->get_field(record, column->field);
    return field ? field->vt->get_data(field) : NULL;
}

/* Write the BLOBs of both rows. One that an update left alone has the same id in both, and
 * is written once. */
static int write_blobs(struct fbc_journal *journal, const struct fbc_source *source,
                       const struct fbc_shape *shape, struct fbi_replicated_record *old_record,
                       struct fbi_replicated_record *new_record, uint64_t *old_numbers,
                       uint64_t *new_numbers, struct fbc_error *error) {
    unsigned place = 0;
    for (unsigned i = 0; i < shape->column_count; i++) {
        const struct fbc_column *column = &shape->columns[i];
        if (column->storage != FBC_BLOB_NUMBER && column->storage != FBC_ARRAY_NUMBER)
            continue;
        int is_array = column->storage == FBC_ARRAY_NUMBER;
        struct fbi_quad old_id = {0, 0};
        const struct fbi_quad *id = old_record ? blob_id(column, old_record) : NULL;
        int had = id != NULL;
        if (id) {
            old_id = *id;
            if (!write_blob(journal, source, id, is_array, &old_numbers[place], error))
                return FBC_FAILED;
        }
        id = new_record ? blob_id(column, new_record) : NULL;
        if (id && had && id->high == old_id.high && id->low == old_id.low)
            new_numbers[place] = old_numbers[place];
        else if (id && !write_blob(journal, source, id, is_array, &new_numbers[place], error))
            return FBC_FAILED;
        place++;
    }
    return FBC_OK;
}

/* Write the row's record; its BLOBs are in the journal already, under NUMBERS. */
static int write_images(struct fbc_journal *journal, const struct fbc_shape *shape, unsigned table,
                        struct fbi_replicated_record *old_record,
                        struct fbi_replicated_record *new_record, const uint64_t *numbers,
                        struct fbc_error *error) {
    char *body = fbc_record_begin(journal, 4 + 2 * shape->largest_image, error);
    char *to = body;
    enum fbc_record_kind kind = !old_record ? FBC_INSERT : new_record ? FBC_UPDATE : FBC_DELETE;
    if (!body)
        return FBC_FAILED;
    if (kind == FBC_UPDATE)
        to += 4;
    if (old_record && !(to = put_image(to, shape, old_record, numbers)))
        return FBC_STALE;
    if (kind == FBC_UPDATE)
        fbc_put32(body, (uint32_t)(to - body - 4));
    if (new_record && !(to = put_image(to, shape, new_record, numbers + shape->blob_columns)))
        return FBC_STALE;
    fbc_record_end(journal, kind, 0, table, (size_t)(to - body));
    return FBC_OK;
}

int fbc_row_write(struct fbc_journal *journal, const struct fbc_source *source,
                  const struct fbc_shape *shape, unsigned table,
                  struct fbi_replicated_record *old_record,
                  struct fbi_replicated_record *new_record, struct fbc_error *error) {
    uint64_t *numbers = NULL;
    int result = FBC_FAILED;
    if (shape->blob_columns) {
        if (!fits(shape, old_record) || !fits(shape, new_record))
            return FBC_STALE;
        numbers = calloc(2 * (size_t)shape->blob_columns, sizeof *numbers);
        if (!numbers) {
            fbc_error_set(error, 0, "no memory for the BLOBs of table %s", shape->name);
            return FBC_FAILED;
        }
        if (!write_blobs(journal, source, shape, old_record, new_record, numbers,
                         numbers + shape->blob_columns, error))
            goto end;
    }
    result = write_images(journal, shape, table, old_record, new_record, numbers, error);
end:
    free(numbers);
    return result;
}

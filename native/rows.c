/* Table shapes and row images; see rows.h. */
#define _GNU_SOURCE
#include "rows.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "blobs.h"

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

static char *put_column(char *to, const struct fbc_column *column) {
    size_t name_length = strlen(column->name);
    fbc_put16(to, (uint16_t)name_length);
    memcpy(to + 2, column->name, name_length);
    to += 2 + name_length;
    memset(to, 0, FBC_COLUMN_BYTES);
    fbc_put16(to, (uint16_t)column->sql_type);
    fbc_put16(to + 2, (uint16_t)column->sub_type);
    fbc_put16(to + 4, (uint16_t)(is_numeric(column->storage) ? column->scale : 0));
    fbc_put32(to + 6, column->length);
    fbc_put16(to + 10, (uint16_t)column->charset);
    to[18] = (char)column->storage;
    return to + FBC_COLUMN_BYTES;
}

/* The name of a FIELD of a record; null if it has no value of its own in the record: it is
 * computed, dropped, or not yet in the record's format. */
static const char *name_of(struct fbi_replicated_field *field) {
    return field ? field->vt->get_name(field) : NULL;
}

struct fbc_shape *fbc_shape_of(const char *table, struct fbi_replicated_record *record,
                               struct fbc_error *error) {
    enum { LONGEST_NAME = 255 };
    static _Atomic uint64_t last_id;
    size_t name_length = strlen(table);
    unsigned count = record->vt->get_count(record);
    struct fbc_shape *shape = calloc(1, sizeof *shape + count * sizeof *shape->columns);
    if (!shape || !(shape->name = strdup(table)) ||
        !(shape->definition =
              malloc(6 + name_length + (size_t)count * (2 + LONGEST_NAME + FBC_COLUMN_BYTES))))
        goto no_memory;
    shape->id = ++last_id;
    shape->field_count = count;

    char *to = shape->definition + 2 + name_length + 4;
    for (unsigned i = 0; i < count; i++) {
        struct fbi_replicated_field *field = record->vt->get_field(record, i);
        const char *name = name_of(field);
        if (!name)
            continue;
        struct fbc_column *column = &shape->columns[shape->column_count++];
        if (!(column->name = strndup(name, LONGEST_NAME)))
            goto no_memory;
        column->field = i;
        column->sql_type = field->vt->get_type(field) & ~1u;
        column->length = field->vt->get_length(field);
        column->charset = field->vt->get_charset(field);
        column->sub_type = field->vt->get_sub_type(field);
        column->scale = field->vt->get_scale(field);
        column->storage = storage_of(column->sql_type, column->charset);
        shape->fixed_size += fixed_width(column->storage);
        if (is_variable(column->storage))
            shape->largest_image += column->length;
        if (column->storage == FBC_BLOB_NUMBER || column->storage == FBC_ARRAY_NUMBER)
            shape->blob_columns++;
        to = put_column(to, column);
    }
    shape->bitmap_size = (shape->column_count + 7) / 8;
    shape->largest_image += shape->bitmap_size + shape->fixed_size;
    shape->definition_length = (size_t)(to - shape->definition);
    fbc_put16(shape->definition, (uint16_t)name_length);
    memcpy(shape->definition + 2, table, name_length);
    fbc_put16(shape->definition + 2 + name_length, 0); /* its key is not known */
    fbc_put16(shape->definition + 4 + name_length, (uint16_t)shape->column_count);
    if (!shape->column_count) {
        fbc_error_set(error, 0, "none of the columns of table %s can be captured", table);
        fbc_shape_free(shape);
        return NULL;
    }
    return shape;

no_memory:
    fbc_error_set(error, 0, "no memory for the columns of table %s", table);
    fbc_shape_free(shape);
    return NULL;
}

void fbc_shape_free(struct fbc_shape *shape) {
    if (!shape)
        return;
    for (unsigned i = 0; i < shape->column_count; i++)
        free(shape->columns[i].name);
    free(shape->name);
    free(shape->definition);
    free(shape);
}

/* Whether FIELD is what COLUMN was read from. All of it is compared, for every row: a DDL of
 * another process shows itself here first, and a column that is only renamed, or has another
 * scale, would else get values that are not its own. */
static int is_field_of(const struct fbc_column *column, struct fbi_replicated_field *field) {
    const char *name = name_of(field);
    return name && strcmp(name, column->name) == 0 &&
           (field->vt->get_type(field) & ~1u) == column->sql_type &&
           field->vt->get_length(field) == column->length &&
           field->vt->get_scale(field) == column->scale &&
           field->vt->get_sub_type(field) == column->sub_type &&
           field->vt->get_charset(field) == column->charset;
}

/* Walks the fields of a record beside the columns of a shape that was read from such a record. */
struct walk {
    const struct fbc_shape *shape;
    struct fbi_replicated_record *record;
    unsigned field, column;
    struct fbi_replicated_field *at; /* valid until the next step */
};

/* Returns the next column and sets walk->at to its field, or null at the end; then, and only if
 * the whole record fits the shape, walk->field is the number of its fields. */
static const struct fbc_column *step(struct walk *walk) {
    const struct fbc_shape *shape = walk->shape;
    for (; walk->field < shape->field_count; walk->field++) {
        const struct fbc_column *column = &shape->columns[walk->column];
        walk->at = walk->record->vt->get_field(walk->record, walk->field);
        if (walk->column < shape->column_count && column->field == walk->field) {
            if (!is_field_of(column, walk->at))
                return NULL;
            walk->column++;
            walk->field++;
            return column;
        }
        if (name_of(walk->at)) /* a column that the shape doesn't have */
            return NULL;
    }
    return NULL;
}

/* Whether RECORD has the fields that SHAPE was read from; null fits. */
static int fits(const struct fbc_shape *shape, struct fbi_replicated_record *record) {
    struct walk walk = {.shape = shape, .record = record};
    if (!record)
        return 1;
    if (record->vt->get_count(record) != shape->field_count)
        return 0;
    while (step(&walk))
        ;
    return walk.field == shape->field_count;
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
    struct walk walk = {.shape = shape, .record = record};
    const struct fbc_column *column;
    while ((column = step(&walk))) {
        unsigned i = walk.column - 1;
        const unsigned char *data = walk.at->vt->get_data(walk.at);
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
    return walk.field == shape->field_count ? variable : NULL;
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
        struct fbi_quad old_id = {0, 0};
        const struct fbi_quad *id = old_record ? blob_id(column, old_record) : NULL;
        int had = id != NULL;
        if (id) {
            old_id = *id;
            if (!fbc_blob_write(journal, source, id, &old_numbers[place], error))
                return FBC_FAILED;
        }
        id = new_record ? blob_id(column, new_record) : NULL;
        if (id && had && id->high == old_id.high && id->low == old_id.low)
            new_numbers[place] = old_numbers[place];
        else if (id && !fbc_blob_write(journal, source, id, &new_numbers[place], error))
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

/* What records do not show of their tables; see catalogue.h. */
#define _GNU_SOURCE
#include "catalogue.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "threads.h"

enum { NOT_NULL = 1, IDENTITY = 2, HAS_DEFAULT = 4 }; /* column flags of a TABLE record */
enum { MOST_SELECT_COLUMNS = 16, MOST_MESSAGE = 16 * 1024, DIALECT = 3 };
enum { MOST_DIMENSIONS = 16 };        /* of an array */
enum { MOST_DEFAULTS = 1024 * 1024 }; /* bytes of all in a table: a definition fits a block */

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

/* Append what is at FROM to the buffer, which grows. Returns 0 without memory, or with too much. */
static int append(char **buffer, size_t *used, size_t *capacity, const void *from, size_t length) {
    enum { MOST_SELECTED = 64 * 1024 * 1024 };
    if (*used + length > *capacity) {
        size_t wanted = *capacity ? 2 * *capacity : 16 * 1024;
        while (wanted < *used + length)
            wanted *= 2;
        char *more = wanted <= MOST_SELECTED ? realloc(*buffer, wanted) : NULL;
        if (!more)
            return 0;
        *buffer = more;
        *capacity = wanted;
    }
    memcpy(*buffer + *used, from, length);
    *used += length;
    return 1;
}

int fbc_catalogue_select(const struct fbc_source *source, const char *select, int columns,
                         char **rows, size_t *length, struct fbc_error *error) {
    static const uint16_t null = UINT16_MAX;
    struct cursor *cursor = calloc(1, sizeof *cursor);
    size_t capacity = 0;
    int row = -1, fits = 1;
    *rows = NULL;
    *length = 0;
    if (!cursor || columns > MOST_SELECT_COLUMNS)
        fbc_error_set(error, 0, "no memory to read the system tables");
    else if (cursor_open(cursor, source, select, (unsigned)columns, error))
        while (fits && (row = cursor_next(cursor, error)) == 1)
            for (unsigned i = 0; fits && i < (unsigned)columns; i++) {
                const unsigned char *field = cursor->message + cursor->offsets[i];
                uint16_t size;
                memcpy(&size, field, 2);
                fits = cursor_is_null(cursor, i)
                           ? append(rows, length, &capacity, &null, 2)
                           : append(rows, length, &capacity, field, 2 + (size_t)size);
            }
    if (!fits)
        fbc_error_set(error, 0, "the system tables hold more than can be read at once");
    if (cursor && cursor->source)
        cursor_close(cursor);
    free(cursor);
    if (fits && row == 0)
        return FBC_OK;
    free(*rows);
    *rows = NULL;
    return FBC_FAILED;
}

/* What the system tables say of one column beyond what the record shows. */
struct catalogue_column {
    char name[256];
    int precision, char_length, not_null, identity, key_position;
    int stored_as; /* its place in a definition, -1 if it is not there */
    int field_type, sub_type, scale, length, charset; /* of an element, if it is an array */
    int dimensions;                                   /* 0: it is none */
    int32_t bounds[MOST_DIMENSIONS][2];
    size_t default_at, default_length; /* in what read_defaults gives; length 0: it has none */
};

/* TABLE as a literal that needs no quoting and no character set of the attachment. */
static void name_literal(const char *table, char *literal, size_t size) {
    size_t used = (size_t)snprintf(literal, size, "_UTF8 x'");
    for (; *table && used + 4 < size; table++)
        used += (size_t)snprintf(literal + used, size - used, "%02X", (unsigned char)*table);
    snprintf(literal + used, size - used, "'");
}

static int read_columns(struct cursor *cursor, const struct fbc_source *source, const char *literal,
                        struct catalogue_column **columns, unsigned *count,
                        struct fbc_error *error) {
    char select[2048];
    unsigned capacity = 0;
    snprintf(select, sizeof select,
             "SELECT CAST(TRIM(TRAILING FROM R.RDB$FIELD_NAME)"
             " AS VARCHAR(252) CHARACTER SET OCTETS),"
             " CAST(F.RDB$FIELD_PRECISION AS INTEGER),"
             " CAST(F.RDB$CHARACTER_LENGTH AS INTEGER),"
             " CAST(COALESCE(R.RDB$NULL_FLAG, F.RDB$NULL_FLAG, 0) AS INTEGER),"
             " CAST(IIF(R.RDB$IDENTITY_TYPE IS NULL, 0, 1) AS INTEGER),"
             " CAST(F.RDB$FIELD_TYPE AS INTEGER), CAST(F.RDB$FIELD_SUB_TYPE AS INTEGER),"
             " CAST(F.RDB$FIELD_SCALE AS INTEGER), CAST(F.RDB$FIELD_LENGTH AS INTEGER),"
             " CAST(F.RDB$CHARACTER_SET_ID AS INTEGER), CAST(F.RDB$DIMENSIONS AS INTEGER)"
             " FROM RDB$RELATION_FIELDS R"
             " JOIN RDB$FIELDS F ON F.RDB$FIELD_NAME = R.RDB$FIELD_SOURCE"
             " WHERE R.RDB$RELATION_NAME = %s"
             " ORDER BY R.RDB$FIELD_POSITION, R.RDB$FIELD_ID",
             literal);
    int row = -1;
    if (cursor_open(cursor, source, select, 11, error))
        while ((row = cursor_next(cursor, error)) == 1) {
            if (*count == capacity) {
                capacity = capacity ? 2 * capacity : 64;
                struct catalogue_column *more = realloc(*columns, capacity * sizeof *more);
                if (!more) {
                    fbc_error_set(error, 0, "no memory to read the system tables");
                    row = -1;
                    break;
                }
                *columns = more;
            }
            struct catalogue_column *column = &(*columns)[(*count)++];
            *column = (struct catalogue_column){
                .precision = cursor_int(cursor, 1),
                .char_length = cursor_int(cursor, 2),
                .not_null = cursor_int(cursor, 3) != 0,
                .identity = cursor_int(cursor, 4),
                .stored_as = -1,
                .field_type = cursor_int(cursor, 5),
                .sub_type = cursor_int(cursor, 6),
                .scale = cursor_int(cursor, 7),
                .length = cursor_int(cursor, 8),
                .charset = cursor_int(cursor, 9),
                .dimensions = cursor_int(cursor, 10),
            };
            cursor_text(cursor, 0, column->name, sizeof column->name);
            if (column->dimensions < 0 || column->dimensions > MOST_DIMENSIONS)
                column->dimensions = 0;
        }
    cursor_close(cursor);
    return row == 0 ? FBC_OK : FBC_FAILED;
}

static struct catalogue_column *column_named(struct catalogue_column *columns, unsigned count,
                                             const char *name) {
    for (unsigned i = 0; i < count; i++)
        if (strcmp(columns[i].name, name) == 0)
            return &columns[i];
    return NULL;
}

/* Read the bounds of those COLUMNS that are arrays. */
static int read_bounds(struct cursor *cursor, const struct fbc_source *source, const char *literal,
                       struct catalogue_column *columns, unsigned count, struct fbc_error *error) {
    char select[2048], name[256];
    unsigned arrays = 0;
    for (unsigned i = 0; i < count; i++)
        arrays += columns[i].dimensions > 0;
    if (!arrays)
        return FBC_OK;
    snprintf(select, sizeof select,
             "SELECT CAST(TRIM(TRAILING FROM R.RDB$FIELD_NAME)"
             " AS VARCHAR(252) CHARACTER SET OCTETS),"
             " CAST(D.RDB$DIMENSION AS INTEGER), CAST(D.RDB$LOWER_BOUND AS INTEGER),"
             " CAST(D.RDB$UPPER_BOUND AS INTEGER)"
             " FROM RDB$RELATION_FIELDS R"
             " JOIN RDB$FIELD_DIMENSIONS D ON D.RDB$FIELD_NAME = R.RDB$FIELD_SOURCE"
             " WHERE R.RDB$RELATION_NAME = %s",
             literal);
    int row = -1;
    if (cursor_open(cursor, source, select, 4, error))
        while ((row = cursor_next(cursor, error)) == 1) {
            int dimension = cursor_int(cursor, 1);
            cursor_text(cursor, 0, name, sizeof name);
            struct catalogue_column *column = column_named(columns, count, name);
            if (column && dimension >= 0 && dimension < column->dimensions) {
                column->bounds[dimension][0] = cursor_int(cursor, 2);
                column->bounds[dimension][1] = cursor_int(cursor, 3);
            }
        }
    cursor_close(cursor);
    return row == 0 ? FBC_OK : FBC_FAILED;
}

/* Read the defaults of those COLUMNS that are NOT NULL into EXPRESSIONS, for the caller to free,
 * as the engine has compiled them. Their texts are not asked for: these may be in the character
 * set of whoever wrote them, which nobody knows any more, and can't be converted then. Rows can
 * be read without defaults: if these can't be, no column has one, and ERROR says why. */
static void read_defaults(struct cursor *cursor, const struct fbc_source *source,
                          const char *literal, struct catalogue_column *columns, unsigned count,
                          char **expressions, struct fbc_error *error) {
    char select[2048], name[256], expression[FBC_MOST_DEFAULT + 1];
    size_t used = 0, capacity = 0;
    snprintf(select, sizeof select,
             "SELECT CAST(TRIM(TRAILING FROM R.RDB$FIELD_NAME)"
             " AS VARCHAR(252) CHARACTER SET OCTETS),"
             " IIF(R.RDB$DEFAULT_VALUE IS NULL,"
             "  CAST(F.RDB$DEFAULT_VALUE AS VARCHAR(%d) CHARACTER SET OCTETS),"
             "  CAST(R.RDB$DEFAULT_VALUE AS VARCHAR(%d) CHARACTER SET OCTETS))"
             " FROM RDB$RELATION_FIELDS R"
             " JOIN RDB$FIELDS F ON F.RDB$FIELD_NAME = R.RDB$FIELD_SOURCE"
             " WHERE R.RDB$RELATION_NAME = %s"
             "  AND COALESCE(R.RDB$NULL_FLAG, F.RDB$NULL_FLAG, 0) <> 0"
             "  AND IIF(R.RDB$DEFAULT_VALUE IS NULL, OCTET_LENGTH(F.RDB$DEFAULT_VALUE),"
             "   OCTET_LENGTH(R.RDB$DEFAULT_VALUE)) BETWEEN 1 AND %d"
             " ORDER BY R.RDB$FIELD_POSITION, R.RDB$FIELD_ID",
             FBC_MOST_DEFAULT, FBC_MOST_DEFAULT, literal, FBC_MOST_DEFAULT);
    int row = -1;
    if (cursor_open(cursor, source, select, 2, error))
        while ((row = cursor_next(cursor, error)) == 1) {
            cursor_text(cursor, 0, name, sizeof name);
            struct catalogue_column *column = column_named(columns, count, name);
            size_t length = cursor_text(cursor, 1, expression, sizeof expression);
            if (!column || !column->not_null || !length || used + length > MOST_DEFAULTS)
                continue;
            if (!append(expressions, &used, &capacity, expression, length)) {
                fbc_error_set(error, 0, "no memory to read the system tables");
                row = -1;
                break;
            }
            column->default_at = used - length;
            column->default_length = length;
        }
    cursor_close(cursor);
    for (unsigned i = 0; row != 0 && i < count; i++)
        columns[i].default_length = 0;
}

/* Set key_position of COLUMNS from the first key that SELECT gives whose columns are all NOT NULL.
 * It gives kind, name and column, in order. *KIND: 0 there is none. */
static int read_first_key(struct cursor *cursor, const struct fbc_source *source,
                          const char *select, struct catalogue_column *columns, unsigned count,
                          int *kind, struct fbc_error *error) {
    char current[256] = "", name[256], field[256];
    int row = -1, is_usable = 0, position = 0, is_found = 0;
    *kind = 0;
    if (cursor_open(cursor, source, select, 3, error))
        while ((row = cursor_next(cursor, error)) == 1) {
            cursor_text(cursor, 1, name, sizeof name);
            if (strcmp(name, current) != 0) {
                is_found = is_found || is_usable;
                if (is_found)
                    continue;
                for (unsigned i = 0; i < count; i++)
                    columns[i].key_position = 0;
                snprintf(current, sizeof current, "%s", name);
                *kind = cursor_int(cursor, 0);
                is_usable = 1;
                position = 0;
            } else if (is_found)
                continue;
            cursor_text(cursor, 2, field, sizeof field);
            struct catalogue_column *column = column_named(columns, count, field);
            if (column)
                column->key_position = ++position;
            is_usable = is_usable && column && (column->not_null || *kind == 1);
        }
    cursor_close(cursor);
    if (row != 0)
        return FBC_FAILED;
    if (!is_usable && !is_found) {
        *kind = 0;
        for (unsigned i = 0; i < count; i++)
            columns[i].key_position = 0;
    }
    return FBC_OK;
}

/* Whether this database can have indexes over a part of a table's rows: 1, 0, or -1 with ERROR
 * set. Since Firebird 5, if the database was made or upgraded there. */
static int has_partial_indexes(struct cursor *cursor, const struct fbc_source *source,
                               struct fbc_error *error) {
    static const char select[] = "SELECT CAST(COUNT(*) AS INTEGER) FROM RDB$RELATION_FIELDS"
                                 " WHERE RDB$RELATION_NAME = 'RDB$INDICES'"
                                 "  AND RDB$FIELD_NAME = 'RDB$CONDITION_BLR'";
    int result = -1;
    if (cursor_open(cursor, source, select, 1, error) && cursor_next(cursor, error) == 1)
        result = cursor_int(cursor, 0) > 0;
    cursor_close(cursor);
    return result;
}

/* Set key_position of COLUMNS from the primary key, or else from the first unique constraint, or
 * else from the first unique index, by name, whose columns are all NOT NULL. *KIND: 0 none,
 * 1 primary, 2 unique. bridge/structures.py knows the same rule of indexes. */
static int read_key(struct cursor *cursor, const struct fbc_source *source, const char *literal,
                    struct catalogue_column *columns, unsigned count, int *kind,
                    struct fbc_error *error) {
    char select[2048];
    snprintf(select, sizeof select,
             "SELECT CAST(IIF(C.RDB$CONSTRAINT_TYPE = 'PRIMARY KEY', 1, 2) AS INTEGER),"
             " CAST(TRIM(TRAILING FROM C.RDB$CONSTRAINT_NAME)"
             " AS VARCHAR(252) CHARACTER SET OCTETS),"
             " CAST(TRIM(TRAILING FROM S.RDB$FIELD_NAME)"
             " AS VARCHAR(252) CHARACTER SET OCTETS)"
             " FROM RDB$RELATION_CONSTRAINTS C"
             " JOIN RDB$INDEX_SEGMENTS S ON S.RDB$INDEX_NAME = C.RDB$INDEX_NAME"
             " WHERE C.RDB$RELATION_NAME = %s"
             "  AND C.RDB$CONSTRAINT_TYPE IN ('PRIMARY KEY', 'UNIQUE')"
             " ORDER BY 1, C.RDB$CONSTRAINT_NAME, S.RDB$FIELD_POSITION",
             literal);
    if (!read_first_key(cursor, source, select, columns, count, kind, error))
        return FBC_FAILED;
    if (*kind)
        return FBC_OK;
    int partial = has_partial_indexes(cursor, source, error);
    if (partial < 0)
        return FBC_FAILED;
    /* An index of an expression has no columns; one of a constraint was looked at. */
    snprintf(select, sizeof select,
             "SELECT CAST(2 AS INTEGER),"
             " CAST(TRIM(TRAILING FROM I.RDB$INDEX_NAME)"
             " AS VARCHAR(252) CHARACTER SET OCTETS),"
             " CAST(TRIM(TRAILING FROM S.RDB$FIELD_NAME)"
             " AS VARCHAR(252) CHARACTER SET OCTETS)"
             " FROM RDB$INDICES I"
             " JOIN RDB$INDEX_SEGMENTS S ON S.RDB$INDEX_NAME = I.RDB$INDEX_NAME"
             " WHERE I.RDB$RELATION_NAME = %s"
             "  AND I.RDB$UNIQUE_FLAG = 1 AND COALESCE(I.RDB$INDEX_INACTIVE, 0) = 0%s"
             "  AND NOT EXISTS (SELECT 1 FROM RDB$RELATION_CONSTRAINTS C"
             "   WHERE C.RDB$INDEX_NAME = I.RDB$INDEX_NAME)"
             " ORDER BY I.RDB$INDEX_NAME, S.RDB$FIELD_POSITION",
             literal, partial ? " AND I.RDB$CONDITION_BLR IS NULL" : "");
    return read_first_key(cursor, source, select, columns, count, kind, error);
}

/* ---- Completing a definition ---------------------------------------------------------------- */

static uint16_t get16(const char *from) {
    uint16_t value;
    memcpy(&value, from, 2);
    return value;
}

/* Write what an element of the array COLUMN is; null: not known. */
static char *put_element(char *to, const struct catalogue_column *column) {
    memset(to, 0, 12);
    if (!column || !column->dimensions)
        return to + 12;
    fbc_put16(to, (uint16_t)column->field_type);
    fbc_put16(to + 2, (uint16_t)column->sub_type);
    fbc_put16(to + 4, (uint16_t)column->scale);
    fbc_put16(to + 6, (uint16_t)column->length);
    fbc_put16(to + 8, (uint16_t)column->charset);
    fbc_put16(to + 10, (uint16_t)column->dimensions);
    to += 12;
    for (int i = 0; i < column->dimensions; i++, to += 8) {
        fbc_put32(to, (uint32_t)column->bounds[i][0]);
        fbc_put32(to + 4, (uint32_t)column->bounds[i][1]);
    }
    return to;
}

/* Write the defaults of COLUMNS in the order of the definition, which has STORED of them. */
static char *put_defaults(char *to, const struct catalogue_column *columns, unsigned count,
                          unsigned stored, const char *expressions) {
    for (unsigned place = 0; place < stored; place++) {
        unsigned i = place < count && columns[place].stored_as == (int)place ? place : 0;
        while (i < count && columns[i].stored_as != (int)place)
            i++;
        if (i == count || !columns[i].default_length)
            continue;
        fbc_put16(to, (uint16_t)columns[i].default_length);
        memcpy(to + 2, expressions + columns[i].default_at, columns[i].default_length);
        to += 2 + columns[i].default_length;
    }
    return to;
}

/* Write what COLUMNS know into the columns of DEFINITION, and behind it the order they have in the
 * table, the elements of arrays and the defaults. Columns that are gone meanwhile stay as the
 * record showed them, at the end. */
static size_t fill_in(char *definition, size_t length, struct catalogue_column *columns,
                      unsigned count, int key_kind, const char *expressions) {
    size_t name_length = get16(definition);
    unsigned stored = get16(definition + 4 + name_length);
    char *order = definition + length, *at = definition + 6 + name_length;
    char *elements = order + 2 * (size_t)stored;
    unsigned placed = 0, gone = 0, defaults = 0;
    definition[2 + name_length] = (char)key_kind;
    for (unsigned i = 0; i < stored; i++) {
        char name[256] = "";
        size_t column_name = get16(at);
        memcpy(name, at + 2, column_name);
        at += 2 + column_name;
        /* Mostly both have the same order: a table may have thousands of columns. */
        struct catalogue_column *known = i < count && strcmp(columns[i].name, name) == 0
                                             ? &columns[i]
                                             : column_named(columns, count, name);
        if (known) {
            known->stored_as = (int)i;
            fbc_put16(at + 12, (uint16_t)known->char_length);
            fbc_put16(at + 14, (uint16_t)known->precision);
            at[16] = (char)((known->not_null ? NOT_NULL : 0) | (known->identity ? IDENTITY : 0) |
                            (known->default_length ? HAS_DEFAULT : 0));
            defaults += known->default_length > 0;
            at[17] = (char)known->key_position;
        } else
            fbc_put16(order + 2 * (stored - ++gone), (uint16_t)i); /* the last one first */
        if (at[18] == FBC_ARRAY_NUMBER)
            elements = put_element(elements, known);
        at += FBC_COLUMN_BYTES;
    }
    for (unsigned i = 0; i < count; i++)
        if (columns[i].stored_as >= 0)
            fbc_put16(order + 2 * placed++, (uint16_t)columns[i].stored_as);
    for (unsigned from = placed, to = stored; from + 1 < to; from++) {
        uint16_t first_gone = get16(order + 2 * --to);
        fbc_put16(order + 2 * to, get16(order + 2 * from));
        fbc_put16(order + 2 * from, first_gone);
    }
    int is_as_stored = elements == order + 2 * (size_t)stored; /* with no arrays */
    for (unsigned i = 0; is_as_stored && i < stored; i++)
        is_as_stored = get16(order + 2 * i) == i;
    if (defaults)
        elements = put_defaults(elements, columns, count, stored, expressions);
    return is_as_stored && !defaults ? length : (size_t)(elements - definition);
}

int fbc_definition_complete(const struct fbc_source *source, char *definition, size_t *length,
                            size_t size, struct fbc_error *error) {
    char table[256] = "", literal[1024];
    size_t name_length = *length >= 6 ? get16(definition) : 0;
    if (*length < 6 || name_length >= sizeof table || 6 + name_length > *length ||
        *length + FBC_COMPLETED_BYTES * (size_t)get16(definition + 4 + name_length) > size) {
        fbc_error_set(error, 0, "a table definition of %zu bytes can't be completed", *length);
        return FBC_FAILED;
    }
    memcpy(table, definition + 2, name_length);
    name_literal(table, literal, sizeof literal);
    struct cursor *cursor = calloc(1, sizeof *cursor);
    struct catalogue_column *columns = NULL;
    char *expressions = NULL;
    unsigned count = 0;
    int key_kind = 0, done = FBC_FAILED;
    if (!cursor)
        fbc_error_set(error, 0, "no memory to read the system tables");
    else if (read_columns(cursor, source, literal, &columns, &count, error) &&
             read_bounds(cursor, source, literal, columns, count, error) &&
             read_key(cursor, source, literal, columns, count, &key_kind, error)) {
        read_defaults(cursor, source, literal, columns, count, &expressions, error);
        *length = count ? fill_in(definition, *length, columns, count, key_kind, expressions) : 0;
        done = FBC_OK;
    }
    free(expressions);
    free(columns);
    free(cursor);
    return done;
}

/* ---- Definitions that were completed ------------------------------------------------------------
 */

struct completed {
    struct completed *next;
    unsigned database;
    uint64_t generation;
    size_t shown_length, length;
    char bytes[]; /* as the record showed it, then complete */
};

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static struct completed *first;
static _Atomic uint64_t version;

uint64_t fbc_catalogue_version(void) {
    return version;
}

static int is_for(const struct completed *entry, unsigned database, const char *shown,
                  size_t shown_length) {
    return entry->database == database && entry->shown_length == shown_length &&
           memcmp(entry->bytes, shown, shown_length) == 0;
}

char *fbc_catalogue_find(unsigned database, uint64_t generation, const char *shown,
                         size_t shown_length, size_t *length) {
    char *found = NULL;
    pthread_rwlock_rdlock(&lock);
    for (struct completed *entry = first; entry; entry = entry->next)
        if (entry->generation == generation && is_for(entry, database, shown, shown_length)) {
            if ((found = malloc(entry->length))) {
                memcpy(found, entry->bytes + shown_length, entry->length);
                *length = entry->length;
            }
            break;
        }
    pthread_rwlock_unlock(&lock);
    return found;
}

void fbc_catalogue_store(unsigned database, uint64_t generation, const char *shown,
                         size_t shown_length, const char *complete, size_t length) {
    struct completed *entry = malloc(sizeof *entry + shown_length + length);
    if (!entry)
        return; /* it stays unresolved, and is completed journal by journal */
    entry->database = database;
    entry->generation = generation;
    entry->shown_length = shown_length;
    entry->length = length;
    memcpy(entry->bytes, shown, shown_length);
    memcpy(entry->bytes + shown_length, complete, length);
    pthread_rwlock_wrlock(&lock);
    for (struct completed **link = &first; *link;) {
        struct completed *old = *link;
        if (old->database == database &&
            (old->generation < generation || is_for(old, database, shown, shown_length))) {
            *link = old->next;
            free(old);
        } else
            link = &old->next;
    }
    entry->next = first;
    first = entry;
    version++;
    pthread_rwlock_unlock(&lock);
}

/* ---- Questions to the bridge ---------------------------------------------------------------- */

/* An answer takes milliseconds, but a busy machine may not get to it for a second. Whoever
 * waits in vain waits once: a question that stays open is shared with its time.
 *
 * Seen in Firebird 5: a DDL that commits wants a lock for itself, and delivers that to all who
 * hold it on its own thread; there it waits for an attachment that is just being made, which in
 * turn waits for a lock behind that of the DDL. That ends when the transaction ends that the DDL
 * waits for, which may be the one that waits here. */
enum { MOST_QUESTIONS = 1024, PATIENCE_MS = 2000, DDL_PATIENCE_MS = 500 };

struct fbc_question {
    struct fbc_question *next; /* while it is not answered */
    int references;            /* of transactions, and one of the list */
    int is_taken, is_answered;
    uint64_t number, generation;
    struct timespec patience;     /* until when transactions wait for it, */
    struct timespec ddl_patience; /* and until when while a DDL commits */
    unsigned database;
    enum fbc_question_kind kind;
    char *complete; /* null: there is none */
    size_t complete_length, shown_length;
    char shown[];
};

static pthread_mutex_t questions_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t question_asked, question_answered;
static struct fbc_question *questions;
static int question_count, committing_ddl;
static uint64_t last_question;

void fbc_catalogue_init(void) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&question_asked, &attributes);
    pthread_cond_init(&question_answered, &attributes);
    pthread_condattr_destroy(&attributes);
}

struct fbc_question *fbc_question_ask(enum fbc_question_kind kind, unsigned database,
                                      uint64_t generation, const char *shown, size_t shown_length) {
    pthread_mutex_lock(&questions_lock);
    struct fbc_question **link = &questions;
    while (*link && ((*link)->kind != kind || (*link)->database != database ||
                     (*link)->generation != generation || (*link)->shown_length != shown_length ||
                     memcmp((*link)->shown, shown, shown_length) != 0))
        link = &(*link)->next;
    struct fbc_question *question = *link;
    if (!question && question_count < MOST_QUESTIONS &&
        (question = calloc(1, sizeof *question + shown_length))) {
        question->references = 1;
        question->number = ++last_question;
        question->generation = generation;
        question->kind = kind;
        question->patience = fbc_monotonic_in(PATIENCE_MS);
        question->ddl_patience = fbc_monotonic_in(DDL_PATIENCE_MS);
        question->database = database;
        question->shown_length = shown_length;
        memcpy(question->shown, shown, shown_length);
        *link = question;
        question_count++;
        pthread_cond_signal(&question_asked);
    }
    if (question)
        question->references++;
    pthread_mutex_unlock(&questions_lock);
    return question;
}

const char *fbc_question_await(struct fbc_question *question, size_t *length) {
    pthread_mutex_lock(&questions_lock);
    int is_over = 0;
    while (!question->is_answered && !is_over) {
        int is_ddl = committing_ddl > 0;
        is_over = pthread_cond_timedwait(&question_answered, &questions_lock,
                                         is_ddl ? &question->ddl_patience : &question->patience) ==
                      ETIMEDOUT &&
                  is_ddl == (committing_ddl > 0);
    }
    /* what is answered stays as it is */
    const char *complete = question->is_answered ? question->complete : NULL;
    *length = question->complete_length;
    pthread_mutex_unlock(&questions_lock);
    return complete;
}

void fbc_question_ddl(int transactions) {
    pthread_mutex_lock(&questions_lock);
    committing_ddl += transactions;
    pthread_cond_broadcast(&question_answered);
    pthread_mutex_unlock(&questions_lock);
}

/* Called with the lock held. */
static void unreference(struct fbc_question *question) {
    if (--question->references)
        return;
    free(question->complete);
    free(question);
}

void fbc_question_drop(struct fbc_question *question) {
    pthread_mutex_lock(&questions_lock);
    unreference(question);
    pthread_mutex_unlock(&questions_lock);
}

/* Called with the lock held. Questions that all who asked have given up are dropped: what they
 * cost, an attachment of ours after a commit, would be in somebody's way. */
static struct fbc_question *first_untaken(void) {
    for (struct fbc_question **link = &questions; *link;) {
        struct fbc_question *question = *link;
        if (question->is_taken || question->references > 1)
            link = &question->next;
        else {
            *link = question->next;
            question_count--;
            unreference(question);
        }
    }
    struct fbc_question *question = questions;
    while (question && question->is_taken)
        question = question->next;
    return question;
}

int fbc_question_take(struct fbc_question_view *to, int most, int timeout_ms) {
    struct timespec until = fbc_monotonic_in(timeout_ms);
    int taken = 0;
    pthread_mutex_lock(&questions_lock);
    struct fbc_question *first_one;
    while (!(first_one = first_untaken()))
        if (pthread_cond_timedwait(&question_asked, &questions_lock, &until) == ETIMEDOUT)
            break;
    for (struct fbc_question *each = first_one; each && taken < most; each = each->next) {
        if (each->is_taken || each->database != first_one->database)
            continue;
        each->is_taken = 1;
        to[taken++] =
            (struct fbc_question_view){each->number, each->generation, each->database,
                                       each->kind,   each->shown,      each->shown_length};
    }
    pthread_mutex_unlock(&questions_lock);
    return taken;
}

void fbc_question_answer(uint64_t number, const char *complete, size_t length) {
    pthread_mutex_lock(&questions_lock);
    struct fbc_question **link = &questions;
    while (*link && (*link)->number != number)
        link = &(*link)->next;
    struct fbc_question *question = *link;
    if (question) {
        *link = question->next;
        question_count--;
        if (length && (question->complete = malloc(length))) {
            memcpy(question->complete, complete, length);
            question->complete_length = length;
        }
        question->is_answered = 1;
        unreference(question);
        pthread_cond_broadcast(&question_answered);
    }
    pthread_mutex_unlock(&questions_lock);
}

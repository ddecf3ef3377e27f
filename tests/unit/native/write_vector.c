/* Writes a journal of one transaction with the plugin's own code, from rows that come as the engine
 * hands them over: behind its interfaces; with a second argument its definition is completed while
 * it runs. Usage: write_vector FILE [catalogue]
 */
#include <fcntl.h>

#include "catalogue.c" /* for fill_in: what the system tables say is given here */

enum { COLUMNS = 3 };

struct fake_field {
    struct fbi_replicated_field base;
    const char *name;
    unsigned type, length, charset;
    int sub_type, scale;
    const void *data;
};

struct fake_record {
    struct fbi_replicated_record base;
    struct fake_field fields[COLUMNS];
};

static struct fake_field *self_of(struct fbi_replicated_field *field) {
    return (struct fake_field *)field;
}
static const char *get_name(struct fbi_replicated_field *field) {
    return self_of(field)->name;
}
static unsigned get_type(struct fbi_replicated_field *field) {
    return self_of(field)->type;
}
static int get_sub_type(struct fbi_replicated_field *field) {
    return self_of(field)->sub_type;
}
static int get_scale(struct fbi_replicated_field *field) {
    return self_of(field)->scale;
}
static unsigned get_length(struct fbi_replicated_field *field) {
    return self_of(field)->length;
}
static unsigned get_charset(struct fbi_replicated_field *field) {
    return self_of(field)->charset;
}
static const void *get_data(struct fbi_replicated_field *field) {
    return self_of(field)->data;
}

static const struct fbi_replicated_field_vt field_vt = {
    .get_name = get_name,
    .get_type = get_type,
    .get_sub_type = get_sub_type,
    .get_scale = get_scale,
    .get_length = get_length,
    .get_charset = get_charset,
    .get_data = get_data,
};

static unsigned get_count(struct fbi_replicated_record *record) {
    (void)record;
    return COLUMNS;
}

/* As in the engine, one object serves all columns. */
static struct fbi_replicated_field *get_field(struct fbi_replicated_record *record,
                                              unsigned index) {
    static struct fake_field current;
    current = ((struct fake_record *)record)->fields[index];
    return &current.base;
}

static const struct fbi_replicated_record_vt record_vt = {
    .get_count = get_count,
    .get_field = get_field,
};

struct varchar {
    uint16_t length;
    char text[80];
};

static struct fake_record row(const int64_t *id, const struct varchar *name, const int32_t *price) {
    struct fake_record record = {
        .base = {.vt = &record_vt},
        .fields =
            {
                {.name = "ID", .type = FBI_SQL_INT64, .length = 8, .data = id},
                {.name = "NAME",
                 .type = FBI_SQL_VARYING + 1,
                 .length = 80,
                 .charset = 4,
                 .data = name},
                {.name = "PRICE",
                 .type = FBI_SQL_LONG + 1,
                 .length = 4,
                 .sub_type = 1,
                 .scale = -2,
                 .data = price},
            },
    };
    for (int i = 0; i < COLUMNS; i++)
        record.fields[i].base.vt = &field_vt;
    return record;
}

int main(int count, char **arguments) {
    static struct catalogue_column known[COLUMNS] = {
        {.name = "ID", .not_null = 1, .key_position = 1},
        {.name = "NAME", .char_length = 20},
        {.name = "PRICE", .precision = 9},
    };
    static const struct fbc_journal_identity identity = {
        .uuid = {0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd,
                 0xee, 0xff},
        .database_guid = {0xd1, 0xd2, 0xd3, 0xd4, 0xe5, 0xe6, 0x47, 0x08, 0x89, 0x0a, 0x0b, 0x0c,
                          0x0d, 0x0e, 0x0f, 0x10},
        .owner = {0xa0, 0xa1, 0xa2, 0xa3, 0xb4, 0xb5, 0x46, 0xc7, 0x88, 0xd9, 0xea, 0xeb, 0xec,
                  0xed, 0xee, 0xef},
        .transaction = 4711,
        .started_us = 1790000000000000,
        .boot = {0xb0, 0xb1},
        .database_inode = 0x123456789,
        .database = "/data/shop.fdb",
    };
    static const struct varchar cup = {12, "Кружка"};
    static const int64_t first = 1, second = 2;
    static const uint64_t last = 0x112345678; /* ticket drawn before */
    static const int32_t price = 1250, reduced = 990, minus = -1;
    struct fake_record dear = row(&first, &cup, &price), cheap = row(&first, &cup, &reduced);
    struct fake_record nameless = row(&second, NULL, &minus);
    struct fbc_source nowhere = {0}; /* no BLOBs: nothing is read */
    struct fbc_error error = {{0}};
    struct fbc_journal journal;

    int is_late = count == 3; /* the definition is completed after it was written */
    int fd = count >= 2 ? open(arguments[1], O_RDWR | O_CREAT | O_EXCL, 0600) : -1;
    struct fbc_shape *shape = fbc_shape_of("GOODS", &dear.base, &error);
    if (fd < 0 || !shape)
        return 2;
    size_t room = FBC_BLOCK_HEADER + FBC_RECORD_HEADER;
    struct fbc_appendix catalogue = {calloc(1, room + shape->definition_length + 2 * COLUMNS), 0,
                                     1};
    if (!catalogue.block)
        return 2;
    char *record = catalogue.block + FBC_BLOCK_HEADER, *complete = catalogue.block + room;
    memcpy(complete, shape->definition, shape->definition_length);
    size_t length = fill_in(complete, shape->definition_length, known, COLUMNS, 1, NULL);
    record[0] = FBC_TABLE;
    fbc_put16(record + 2, 1);
    fbc_put32(record + 4, (uint32_t)length);
    if (is_late)
        catalogue.payload = FBC_RECORD_HEADER + length;
    else
        memcpy(shape->definition, complete, length); /* in order: no longer than it was */
    fbc_journal_open(&journal, fd, "00112233-4455-6677-8899-aabbccddeeff", &identity);
    int done = fbc_journal_begin(&journal, "/data/shop.fdb", 14, "SYSDBA", 6, &error);
    char *body = done ? fbc_record_begin(&journal, shape->definition_length, &error) : NULL;
    if (body) {
        memcpy(body, shape->definition, shape->definition_length);
        fbc_record_end(&journal, FBC_TABLE, is_late ? FBC_TABLE_UNRESOLVED : 0, 1,
                       shape->definition_length);
    }
    done = body && fbc_row_write(&journal, &nowhere, shape, 1, NULL, &dear.base, &error) &&
           fbc_row_write(&journal, &nowhere, shape, 1, &dear.base, &cheap.base, &error) &&
           fbc_row_write(&journal, &nowhere, shape, 1, NULL, &nameless.base, &error) &&
           fbc_row_write(&journal, &nowhere, shape, 1, &nameless.base, NULL, &error) &&
           fbc_journal_seal(&journal, identity.started_us + 1000, last + 1, &catalogue, &error);
    if (!done)
        fprintf(stderr, "%s\n", error.text);
    fbc_journal_free(&journal);
    fbc_shape_free(shape);
    free(catalogue.block);
    return done ? 0 : 1;
}

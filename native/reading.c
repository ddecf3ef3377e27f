/* Reads rows inside this process for one that has no password: the server's side of
 * journal/snapshot/server_attachment.py. It hands out the engine's own messages and the pieces of
 * BLOBs as they are; what they mean is found out elsewhere.
 *
 * Used by threads of the bridge (bridge/reading.py), one for each attachment, with no lock of ours
 * held. An attachment that somebody shuts down, or an engine that ends, makes each call fail soon.
 */
#include "reading.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "own_attachment.h"

enum { DIALECT = 3, LOOK_ROWS = 256, ONE_SEGMENT = 65535 };
enum { TOTAL_LENGTH = 6 }; /* isc_info_blob_total_length */
enum { TPB_VERSION3 = 3, TPB_CONCURRENCY = 2, TPB_NOWAIT = 7, TPB_READ = 8 };

struct reading {
    struct fbi_status *status, *cancelling;
    struct fbi_attachment *attachment;
};

struct statement {
    struct fbi_statement *prepared;
    struct fbi_message_metadata *out;
    struct fbi_result_set *rows; /* null: they are not open */
    unsigned length;             /* of a row */
};

static void say(struct fbc_failure *failure, const char *text) {
    failure->count = 0;
    snprintf(failure->text, sizeof failure->text, "%s", text);
}

static int engine_ends(struct fbc_failure *failure) {
    failure->count = 0;
    failure->text[0] = 0;
    return fbc_engine_ends(failure->text, sizeof failure->text);
}

static int failed(const struct reading *reading) {
    return (reading->status->vt->get_state(reading->status) & FBI_STATE_ERRORS) != 0;
}

/* Tell what the engine says, with the codes of its errors. */
static void tell(const struct reading *reading, struct fbc_failure *failure) {
    enum { MOST_CODES = sizeof failure->codes / sizeof *failure->codes };
    failure->count = 0;
    const intptr_t *each = reading->status->vt->get_errors(reading->status);
    for (; each && *each != FBI_ARG_END && failure->count < MOST_CODES;
         each += *each == FBI_ARG_COUNTED_STRING ? 3 : 2)
        if (*each == FBI_ARG_GDS)
            failure->codes[failure->count++] = (int32_t)each[1];
    fbc_engine_words(reading->status, failure->text, sizeof failure->text);
}

static int start_call(struct reading *reading, struct fbc_failure *failure) {
    if (engine_ends(failure))
        return 0;
    reading->status->vt->init(reading->status);
    return 1;
}

/* End what METHOD ends; an object whose end failed is at least let go. */
#define END(object, method)                                                                        \
    do {                                                                                           \
        reading->status->vt->init(reading->status);                                                \
        (object)->vt->method((object), reading->status);                                           \
        if (failed(reading))                                                                       \
            (object)->vt->release(object);                                                         \
    } while (0)

/* A server that ends closes all that is open by itself. */
static int may_end(void) {
    char ignored[1];
    return !fbc_engine_ends(ignored, sizeof ignored);
}

/* Have values come as they are stored, whatever firebird.conf says (DataTypeCompatibility). */
static int bind_types(struct reading *reading, struct fbc_failure *failure) {
    static const unsigned char tpb[] = {TPB_VERSION3, TPB_CONCURRENCY, TPB_NOWAIT, TPB_READ};
    static const char *const statements[] = {"SET BIND OF TIME ZONE TO NATIVE",
                                             "SET BIND OF DECFLOAT TO NATIVE",
                                             "SET BIND OF INT128 TO NATIVE"};
    void *transaction = fbc_reading_begin(reading, tpb, sizeof tpb, failure);
    if (!transaction)
        return 0;
    int done = 1;
    for (size_t i = 0; done && i < sizeof statements / sizeof *statements; i++) {
        reading->status->vt->init(reading->status);
        reading->attachment->vt->execute(reading->attachment, reading->status, transaction, 0,
                                         statements[i], DIALECT, NULL, NULL, NULL, NULL);
        done = !failed(reading);
    }
    if (!done)
        tell(reading, failure);
    fbc_reading_end(reading, transaction);
    return done;
}

static struct reading *attach(const char *database, int has_rights, struct fbc_failure *failure) {
    if (engine_ends(failure))
        return NULL;
    struct reading *reading = calloc(1, sizeof *reading);
    if (!reading || !(reading->status = fbc_engine_status()) ||
        !(reading->cancelling = fbc_engine_status())) {
        say(failure, "no memory");
        if (reading && reading->status)
            reading->status->vt->dispose(reading->status);
        free(reading);
        return NULL;
    }
    reading->attachment =
        fbc_engine_attach(reading->status, database, "firebird-cdc snapshot", has_rights);
    if (reading->attachment)
        return reading;
    tell(reading, failure);
    fbc_reading_detach(reading);
    return NULL;
}

void *fbc_reading_attach(const char *database, struct fbc_failure *failure) {
    struct reading *reading = attach(database, 1, failure);
    if (!reading || bind_types(reading, failure))
        return reading;
    fbc_reading_detach(reading);
    return NULL;
}

void *fbc_reading_stand(const char *database, struct fbc_failure *failure) {
    return attach(database, 0, failure);
}

void fbc_reading_detach(void *handle) {
    struct reading *reading = handle;
    if (may_end()) {
        if (reading->attachment)
            fbc_engine_detach(reading->status, reading->attachment);
        reading->status->vt->dispose(reading->status);
        reading->cancelling->vt->dispose(reading->cancelling);
    }
    free(reading);
}

void fbc_reading_cancel(void *handle) {
    struct reading *reading = handle;
    if (!may_end())
        return;
    reading->cancelling->vt->init(reading->cancelling);
    reading->attachment->vt->cancel_operation(reading->attachment, reading->cancelling,
                                              FBI_CANCEL_RAISE);
}

void *fbc_reading_begin(void *handle, const unsigned char *tpb, uint32_t length,
                        struct fbc_failure *failure) {
    struct reading *reading = handle;
    if (!start_call(reading, failure))
        return NULL;
    struct fbi_transaction *transaction = reading->attachment->vt->start_transaction(
        reading->attachment, reading->status, length, tpb);
    if (!failed(reading))
        return transaction;
    tell(reading, failure);
    return NULL;
}

void fbc_reading_end(void *handle, void *object) {
    struct reading *reading = handle;
    struct fbi_transaction *transaction = object;
    if (!may_end())
        return;
    if (transaction->vt->version >= FBI_TRANSACTION_HAS_COMMIT)
        END(transaction, commit);
    else
        END(transaction, deprecated_commit);
}

int fbc_reading_info(void *handle, void *object, const unsigned char *items, uint32_t count,
                     unsigned char *answer, uint32_t size, struct fbc_failure *failure) {
    struct reading *reading = handle;
    struct fbi_transaction *transaction = object;
    if (!start_call(reading, failure))
        return 0;
    if (transaction)
        transaction->vt->get_info(transaction, reading->status, count, items, size, answer);
    else
        reading->attachment->vt->get_info(reading->attachment, reading->status, count, items, size,
                                          answer);
    if (!failed(reading))
        return 1;
    tell(reading, failure);
    return 0;
}

/* ---- Statements ---------------------------------------------------------------------------- */

struct writing {
    unsigned char *at, *end;
    int fits;
};

static void put(struct writing *to, const void *value, size_t length) {
    to->fits = to->fits && (size_t)(to->end - to->at) >= length;
    if (!to->fits)
        return;
    memcpy(to->at, value, length);
    to->at += length;
}

static void put_number(struct writing *to, int64_t number) {
    uint32_t value = (uint32_t)number;
    put(to, &value, sizeof value);
}

static void put_column(struct reading *reading, struct fbi_message_metadata *out, unsigned i,
                       struct writing *to) {
    const struct fbi_message_metadata_vt *vt = out->vt;
    struct fbi_status *status = reading->status;
    put_number(to, vt->get_type(out, status, i));
    put_number(to, vt->get_sub_type(out, status, i));
    put_number(to, vt->get_length(out, status, i));
    put_number(to, vt->get_scale(out, status, i));
    put_number(to, vt->get_charset(out, status, i));
    put_number(to, vt->get_offset(out, status, i));
    put_number(to, vt->get_null_offset(out, status, i));
    const char *name = vt->get_alias(out, status, i);
    size_t length = name ? strlen(name) : 0;
    uint16_t told = length < UINT16_MAX ? (uint16_t)length : 0;
    put(to, &told, sizeof told);
    put(to, name, told);
}

/* Describe what STATEMENT gives; 0 with the engine's errors in the status, or if it doesn't fit. */
static int describe(struct reading *reading, struct statement *statement, struct writing *to) {
    struct fbi_status *status = reading->status;
    struct fbi_statement *prepared = statement->prepared;
    unsigned type = prepared->vt->get_type(prepared, status);
    struct fbi_message_metadata *in = NULL;
    if (!failed(reading))
        in = prepared->vt->get_input_metadata(prepared, status);
    if (failed(reading) || !in)
        return 0;
    unsigned parameters = in->vt->get_count(in, status);
    in->vt->release(in);
    statement->out = prepared->vt->get_output_metadata(prepared, status);
    if (failed(reading) || !statement->out)
        return 0;
    unsigned columns = statement->out->vt->get_count(statement->out, status);
    statement->length = statement->out->vt->get_message_length(statement->out, status);
    put_number(to, type);
    put_number(to, parameters);
    put_number(to, statement->length);
    put_number(to, columns);
    for (unsigned i = 0; i < columns && to->fits && !failed(reading); i++)
        put_column(reading, statement->out, i, to);
    return to->fits && !failed(reading);
}

void *fbc_reading_prepare(void *handle, void *transaction, const char *sql, uint32_t length,
                          unsigned char *shown, uint32_t size, uint32_t *used,
                          struct fbc_failure *failure) {
    struct reading *reading = handle;
    if (!start_call(reading, failure))
        return NULL;
    struct statement *statement = calloc(1, sizeof *statement);
    if (!statement) {
        say(failure, "no memory");
        return NULL;
    }
    statement->prepared = reading->attachment->vt->prepare(reading->attachment, reading->status,
                                                           transaction, length, sql, DIALECT, 0);
    struct writing to = {shown, shown + size, 1};
    if (!failed(reading) && statement->prepared && describe(reading, statement, &to)) {
        *used = (uint32_t)(to.at - shown);
        return statement;
    }
    if (failed(reading))
        tell(reading, failure);
    else
        say(failure, "it has more columns than can be told");
    fbc_reading_free(reading, statement);
    return NULL;
}

int fbc_reading_open(void *handle, void *transaction, void *object, struct fbc_failure *failure) {
    struct reading *reading = handle;
    struct statement *statement = object;
    if (!start_call(reading, failure))
        return 0;
    if (statement->rows) {
        say(failure, "its rows are open already");
        return 0;
    }
    statement->rows = statement->prepared->vt->open_cursor(
        statement->prepared, reading->status, transaction, NULL, NULL, statement->out, 0);
    if (!failed(reading) && statement->rows)
        return 1;
    statement->rows = NULL;
    tell(reading, failure);
    return 0;
}

int64_t fbc_reading_fetch(void *handle, void *object, unsigned char *to, uint64_t size,
                          int32_t *is_end, struct fbc_failure *failure) {
    struct reading *reading = handle;
    struct statement *statement = object;
    int64_t rows = 0;
    *is_end = 0;
    if (!start_call(reading, failure))
        return -1;
    if (!statement->rows || !statement->length) {
        say(failure, "its rows are not open");
        return -1;
    }
    for (uint64_t at = 0; size - at >= statement->length; at += statement->length) {
        if (rows % LOOK_ROWS == LOOK_ROWS - 1 && engine_ends(failure))
            return -1;
        int result = statement->rows->vt->fetch_next(statement->rows, reading->status, to + at);
        if (result == FBI_RESULT_NO_DATA) {
            *is_end = 1;
            break;
        }
        if (result != FBI_RESULT_OK) {
            tell(reading, failure);
            return -1;
        }
        rows++;
    }
    return rows;
}

/* Have the engine let go of what it has of STATEMENT. */
static void let_go(struct reading *reading, struct statement *statement) {
    if (statement->rows) {
        if (statement->rows->vt->version >= FBI_RESULT_SET_HAS_CLOSE)
            END(statement->rows, close);
        else
            END(statement->rows, deprecated_close);
    }
    if (statement->out)
        statement->out->vt->release(statement->out);
    if (statement->prepared) {
        if (statement->prepared->vt->version >= FBI_STATEMENT_HAS_FREE)
            END(statement->prepared, free);
        else
            END(statement->prepared, deprecated_free);
    }
}

void fbc_reading_free(void *handle, void *object) {
    if (may_end())
        let_go(handle, object);
    free(object);
}

/* ---- BLOBs --------------------------------------------------------------------------------- */

void *fbc_reading_open_blob(void *handle, void *transaction, const unsigned char *id,
                            struct fbc_failure *failure) {
    struct reading *reading = handle;
    struct fbi_quad quad;
    if (!start_call(reading, failure))
        return NULL;
    memcpy(&quad, id, sizeof quad);
    struct fbi_blob *blob = reading->attachment->vt->open_blob(reading->attachment, reading->status,
                                                               transaction, &quad, 0, NULL);
    if (!failed(reading) && blob)
        return blob;
    tell(reading, failure);
    return NULL;
}

int64_t fbc_reading_blob_piece(void *handle, void *object, unsigned char *to, uint32_t size,
                               int32_t *is_end, struct fbc_failure *failure) {
    struct reading *reading = handle;
    struct fbi_blob *blob = object;
    uint32_t used = 0;
    *is_end = 0;
    while (used < size) {
        if (!start_call(reading, failure))
            return -1;
        unsigned room = size - used < ONE_SEGMENT ? size - used : ONE_SEGMENT, length = 0;
        int result = blob->vt->get_segment(blob, reading->status, room, to + used, &length);
        if (result == FBI_RESULT_NO_DATA) {
            *is_end = 1;
            break;
        }
        if (result != FBI_RESULT_OK && result != FBI_RESULT_SEGMENT) {
            tell(reading, failure);
            return -1;
        }
        used += length;
    }
    return used;
}

int64_t fbc_reading_blob_length(void *handle, void *object, struct fbc_failure *failure) {
    static const unsigned char items[] = {TOTAL_LENGTH};
    struct reading *reading = handle;
    struct fbi_blob *blob = object;
    unsigned char answer[32] = {0};
    if (!start_call(reading, failure))
        return -1;
    blob->vt->get_info(blob, reading->status, sizeof items, items, sizeof answer, answer);
    if (failed(reading)) {
        tell(reading, failure);
        return -1;
    }
    unsigned length = answer[1] | (unsigned)answer[2] << 8;
    if (answer[0] != TOTAL_LENGTH || length > 8) {
        say(failure, "the engine does not tell how long a BLOB is");
        return -1;
    }
    int64_t value = 0;
    for (unsigned i = 0; i < length; i++)
        value |= (int64_t)answer[3 + i] << 8 * i;
    return value;
}

void fbc_reading_close_blob(void *handle, void *object) {
    struct reading *reading = handle;
    struct fbi_blob *blob = object;
    if (!may_end())
        return;
    if (blob->vt->version >= FBI_BLOB_HAS_CLOSE)
        END(blob, close);
    else
        END(blob, deprecated_close);
}

/* The engine as a witness: what became of transactions, many with one statement.
 *
 * An answer of RDB$GET_TRANSACTION_CN may be seen before it is on disk. So it is asked inside
 * a snapshot transaction, and that one is ended before anybody acts: its own end takes the same
 * inventory page exclusively, and so waits for the write (tra.cpp, cch.cpp).
 *
 * Used by the bridge's own threads, never by a user's, and with no lock of ours held: the
 * attachment may itself find dead transactions and call back into this plugin.
 */
#include "witness.h"

#include "catalogue.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { QUESTIONS = 64, MOST_MESSAGE = 4096, DIALECT = 3 };

enum { /* parameter blocks (consts_pub.h) */
       DPB_VERSION1 = 1,
       DPB_NO_GARBAGE_COLLECT = 16,
       DPB_USER_NAME = 28,
       DPB_NO_DB_TRIGGERS = 72,
       DPB_PROCESS_NAME = 74, /* by which a DBA knows our attachments */
       DPB_UTF8_FILENAME = 77,
       TPB_VERSION3 = 3,
       TPB_CONCURRENCY = 2,
       TPB_NOWAIT = 7,
       TPB_READ = 8
};

struct witness {
    struct fbi_status *status;
    struct fbi_attachment *attachment;
    struct fbi_transaction *reading; /* in which the system tables are read; null: one for each */
    struct fbi_statement *statement;
    struct fbi_message_metadata *in, *out;
    unsigned in_offsets[QUESTIONS], in_nulls[QUESTIONS];
    unsigned out_offsets[QUESTIONS], out_nulls[QUESTIONS];
    _Alignas(16) unsigned char in_message[MOST_MESSAGE], out_message[MOST_MESSAGE];
};

static struct fbi_master *master;
static atomic_int is_ending;

/* An engine that is shutting down must not be asked any more. */
static int engine_ends(char *error, int error_size) {
    if (!is_ending && !master->vt->get_process_exiting(master))
        return 0;
    snprintf(error, (size_t)error_size, "the server is shutting down");
    return 1;
}

void fbc_witness_end(void) {
    is_ending = 1;
}

void fbc_witness_init(struct fbi_master *engine) {
    master = engine;
}

static int failed(const struct witness *witness) {
    return (witness->status->vt->get_state(witness->status) & FBI_STATE_ERRORS) != 0;
}

static void tell(const struct witness *witness, char *error, int error_size) {
    struct fbi_util *util = master->vt->get_util_interface(master);
    util->vt->format_status(util, error, (unsigned)error_size, witness->status);
}

/* End what METHOD ends; an object whose end failed is at least let go. */
#define END(object, method)                                                                        \
    do {                                                                                           \
        witness->status->vt->init(witness->status);                                                \
        (object)->vt->method((object), witness->status);                                           \
        if (failed(witness))                                                                       \
            (object)->vt->release(object);                                                         \
    } while (0)

void fbc_witness_close(void *handle) {
    struct witness *witness = handle;
    char ignored[1];
    if (!witness || engine_ends(ignored, sizeof ignored))
        return; /* a server that ends closes all attachments itself */
    if (witness->in)
        witness->in->vt->release(witness->in);
    if (witness->out)
        witness->out->vt->release(witness->out);
    if (witness->statement) {
        if (witness->statement->vt->version >= FBI_STATEMENT_HAS_FREE)
            END(witness->statement, free);
        else
            END(witness->statement, deprecated_free);
    }
    if (witness->attachment) {
        if (witness->attachment->vt->version >= FBI_ATTACHMENT_HAS_DETACH)
            END(witness->attachment, detach);
        else
            END(witness->attachment, deprecated_detach);
    }
    witness->status->vt->dispose(witness->status);
    free(witness);
}

/* Start a transaction to ask in; NULL with an ERROR if the engine can't or its process ends. */
static struct fbi_transaction *start(struct witness *witness, char *error, int error_size) {
    static const unsigned char tpb[] = {TPB_VERSION3, TPB_CONCURRENCY, TPB_NOWAIT, TPB_READ};
    if (engine_ends(error, error_size))
        return NULL;
    witness->status->vt->init(witness->status);
    struct fbi_transaction *transaction = witness->attachment->vt->start_transaction(
        witness->attachment, witness->status, sizeof tpb, tpb);
    if (!failed(witness))
        return transaction;
    tell(witness, error, error_size);
    return NULL;
}

static void finish(struct witness *witness, struct fbi_transaction *transaction) {
    if (transaction->vt->version >= FBI_TRANSACTION_HAS_COMMIT)
        END(transaction, commit);
    else
        END(transaction, deprecated_commit);
}

int fbc_witness_begin_reading(void *handle, char *error, int error_size) {
    struct witness *witness = handle;
    witness->reading = start(witness, error, error_size);
    return witness->reading != NULL;
}

void fbc_witness_end_reading(void *handle) {
    struct witness *witness = handle;
    char ignored[1];
    if (witness->reading && !engine_ends(ignored, sizeof ignored))
        finish(witness, witness->reading);
    witness->reading = NULL;
}

/* The transaction to read the system tables in; `leave` ends it unless more is read in it. */
static struct fbi_transaction *enter(struct witness *witness, char *error, int error_size) {
    return witness->reading ? witness->reading : start(witness, error, error_size);
}

static void leave(struct witness *witness, struct fbi_transaction *transaction) {
    if (transaction != witness->reading)
        finish(witness, transaction);
}

static int layout(struct witness *witness, struct fbi_message_metadata *metadata, unsigned *offsets,
                  unsigned *nulls) {
    struct fbi_status *status = witness->status;
    if (failed(witness) || !metadata ||
        metadata->vt->get_message_length(metadata, status) > MOST_MESSAGE)
        return 0;
    for (unsigned i = 0; i < QUESTIONS; i++) {
        offsets[i] = metadata->vt->get_offset(metadata, status, i);
        nulls[i] = metadata->vt->get_null_offset(metadata, status, i);
    }
    return !failed(witness);
}

static int prepare(struct witness *witness, struct fbi_transaction *transaction) {
    static const char question[] = "RDB$GET_TRANSACTION_CN(CAST(? AS BIGINT)), ";
    char sql[sizeof question * QUESTIONS + 64] = "SELECT ";
    struct fbi_status *status = witness->status;
    size_t used = strlen(sql);
    for (int i = 0; i < QUESTIONS; i++)
        used += (size_t)snprintf(sql + used, sizeof sql - used, "%s", question);
    snprintf(sql + used - 2, sizeof sql - used + 2, " FROM RDB$DATABASE");
    witness->statement = witness->attachment->vt->prepare(witness->attachment, status, transaction,
                                                          0, sql, DIALECT, 0);
    if (failed(witness) || !witness->statement)
        return 0;
    witness->in = witness->statement->vt->get_input_metadata(witness->statement, status);
    if (!layout(witness, witness->in, witness->in_offsets, witness->in_nulls))
        return 0;
    witness->out = witness->statement->vt->get_output_metadata(witness->statement, status);
    return layout(witness, witness->out, witness->out_offsets, witness->out_nulls);
}

void *fbc_witness_open(const char *database, char *error, int error_size) {
    /* clang-format off */
    static const unsigned char dpb[] = {
        DPB_VERSION1,
        DPB_USER_NAME, 6, 'S', 'Y', 'S', 'D', 'B', 'A',
        DPB_PROCESS_NAME, 12, 'f', 'i', 'r', 'e', 'b', 'i', 'r', 'd', '-', 'c', 'd', 'c',
        DPB_NO_GARBAGE_COLLECT, 1, 1,
        DPB_NO_DB_TRIGGERS, 1, 1,
        DPB_UTF8_FILENAME, 0,
    };
    /* clang-format on */
    if (engine_ends(error, error_size))
        return NULL;
    struct witness *witness = calloc(1, sizeof *witness);
    if (!witness || !(witness->status = master->vt->get_status(master))) {
        snprintf(error, (size_t)error_size, "no memory");
        free(witness);
        return NULL;
    }
    struct fbi_provider *provider = master->vt->get_dispatcher(master);
    witness->attachment =
        provider->vt->attach_database(provider, witness->status, database, sizeof dpb, dpb);
    provider->vt->release(provider);
    if (!failed(witness) && witness->attachment)
        return witness;
    witness->attachment = NULL;
    tell(witness, error, error_size);
    fbc_witness_close(witness);
    return NULL;
}

/* Ask COUNT questions at most QUESTIONS; the last one fills the rest of the statement. */
static int ask_some(struct witness *witness, struct fbi_transaction *transaction,
                    const uint64_t *transactions, int64_t *answers, int count) {
    for (int i = 0; i < QUESTIONS; i++) {
        memcpy(witness->in_message + witness->in_offsets[i],
               &transactions[i < count ? i : count - 1], 8);
        memset(witness->in_message + witness->in_nulls[i], 0, 2);
    }
    witness->status->vt->init(witness->status);
    witness->statement->vt->execute(witness->statement, witness->status, transaction, witness->in,
                                    witness->in_message, witness->out, witness->out_message);
    if (failed(witness))
        return 0;
    for (int i = 0; i < count; i++) {
        int16_t is_null;
        memcpy(&is_null, witness->out_message + witness->out_nulls[i], 2);
        if (is_null)
            answers[i] = FBC_ANSWER_UNKNOWN;
        else
            memcpy(&answers[i], witness->out_message + witness->out_offsets[i], 8);
    }
    return 1;
}

int fbc_witness_ask(void *handle, const uint64_t *transactions, int64_t *answers, int count,
                    char *error, int error_size) {
    struct witness *witness = handle;
    struct fbi_transaction *transaction = start(witness, error, error_size);
    if (!transaction)
        return 0;
    int done = witness->statement || prepare(witness, transaction);
    for (int first = 0; done && first < count; first += QUESTIONS) {
        int some = count - first < QUESTIONS ? count - first : QUESTIONS;
        done = ask_some(witness, transaction, transactions + first, answers + first, some);
    }
    if (!done)
        tell(witness, error, error_size);
    finish(witness, transaction);
    if (done && failed(witness)) { /* the answers may not be on disk yet */
        tell(witness, error, error_size);
        done = 0;
    }
    return done;
}

int fbc_witness_describe(void *handle, char *definition, int length, int size, char *error,
                         int error_size) {
    struct witness *witness = handle;
    struct fbc_error reason = {{0}};
    size_t used = (size_t)length;
    struct fbi_transaction *transaction = enter(witness, error, error_size);
    if (!transaction)
        return -1;
    struct fbc_source source = {witness->attachment, transaction, witness->status};
    int done = fbc_definition_complete(&source, definition, &used, (size_t)size, &reason);
    snprintf(error, (size_t)error_size, "%s", reason.text);
    leave(witness, transaction);
    return done ? (int)used : -1;
}

int fbc_witness_select(void *handle, const char *select, int columns, char **rows, size_t *length,
                       char *error, int error_size) {
    struct witness *witness = handle;
    struct fbc_error reason = {{0}};
    struct fbi_transaction *transaction = enter(witness, error, error_size);
    if (!transaction)
        return 0;
    struct fbc_source source = {witness->attachment, transaction, witness->status};
    int done = fbc_catalogue_select(&source, select, columns, rows, length, &reason);
    if (!done)
        snprintf(error, (size_t)error_size, "%s", reason.text);
    leave(witness, transaction);
    return done;
}

void fbc_witness_free(char *rows) {
    free(rows);
}

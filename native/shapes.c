/* Shapes of tables: those that a session knows, and the TABLE records that a transaction's journal
 * has of them. */
#define _GNU_SOURCE
#include "transaction.h"

#include <stdlib.h>
#include <string.h>

#include "catalogue.h"
#include "definitions.h"
#include "shared_page.h"

void fbc_session_free_shapes(struct fbc_session *session) {
    while (session->shapes) {
        struct fbc_shape *shape = session->shapes;
        session->shapes = shape->next;
        fbc_shape_free(shape);
    }
}

/* The link to the shape of TABLE, or the end of the list. */
static struct fbc_shape **find_shape(struct fbc_session *session, const char *table) {
    struct fbc_shape **link = &session->shapes;
    while (*link && strcmp((*link)->name, table) != 0)
        link = &(*link)->next;
    return link;
}

/* Another process may have found it out: remember that here, too. */
static char *find_kept(struct fbc_session *session, const struct fbc_shape *shape, size_t *length) {
    char *complete = fbc_definition_find(session->database, shape->generation, shape->definition,
                                         shape->definition_length, length);
    if (complete)
        fbc_catalogue_store(session->database->id, shape->generation, shape->definition,
                            shape->definition_length, complete, *length);
    return complete;
}

/* Give SHAPE its complete definition, if the bridge has found it out. */
static void resolve(struct fbc_session *session, struct fbc_shape *shape) {
    size_t length = 0;
    shape->version = fbc_catalogue_version();
    char *complete = fbc_catalogue_find(session->database->id, shape->generation, shape->definition,
                                        shape->definition_length, &length);
    if (!complete && fbc_host_is_joined())
        complete = find_kept(session, shape, &length);
    if (!complete)
        return;
    free(shape->definition);
    shape->definition = complete;
    shape->definition_length = length;
    shape->is_resolved = 1;
}

struct fbc_shape *fbc_txn_shape(struct fbc_transaction *txn, const char *table, int is_stale,
                                struct fbi_replicated_record *record, struct fbc_error *error) {
    struct fbc_session *session = txn->session;
    struct fbc_shape **link = find_shape(session, table);
    struct fbc_shape *shape = *link;
    uint64_t generation = fbc_generation();
    if (shape && shape->generation == generation && !is_stale &&
        (shape->is_resolved || shape->version == fbc_catalogue_version()))
        return shape;
    struct fbc_shape *fresh = fbc_shape_of(table, record, error);
    if (!fresh)
        return NULL;
    fresh->generation = generation;
    resolve(session, fresh);
    if (shape) {
        *link = shape->next;
        /* What the record shows is not enough to tell that a DDL was about something else. */
        int is_comparable = fresh->is_resolved || shape->generation == generation;
        if (is_comparable && shape->definition_length == fresh->definition_length &&
            memcmp(shape->definition, fresh->definition, fresh->definition_length) == 0)
            fresh->id = shape->id;
        fbc_shape_free(shape);
    }
    fresh->next = session->shapes;
    session->shapes = fresh;
    return fresh;
}

static void drop_question(struct fbc_table_use *use) {
    if (use->question)
        fbc_question_drop(use->question);
    use->question = NULL;
}

void fbc_txn_free_tables(struct fbc_transaction *txn) {
    for (uint32_t i = 0; i < txn->tables_used; i++)
        drop_question(&txn->tables[i]);
    free(txn->tables);
}

unsigned fbc_txn_table_number(struct fbc_transaction *txn, const struct fbc_shape *shape,
                              struct fbc_error *error) {
    uint32_t count = txn->journal.at.tables;
    for (uint32_t i = count; i-- > 0;)
        if (txn->tables[i].shape == shape->id)
            return i + 1;
    if (count == UINT16_MAX) {
        fbc_error_set(error, 0, "more than %u table definitions in one transaction", UINT16_MAX);
        return 0;
    }
    if (count == txn->table_capacity) {
        uint32_t capacity = count ? 2 * count : 8;
        struct fbc_table_use *tables = realloc(txn->tables, capacity * sizeof *tables);
        if (!tables) {
            fbc_error_set(error, 0, "no memory for the tables of a transaction");
            return 0;
        }
        txn->tables = tables;
        txn->table_capacity = capacity;
    }
    if (!shape->is_resolved && !fbc_host_need_bridge(txn->session->settings, error))
        return 0; /* nobody else can answer the question below */
    char *body = fbc_record_begin(&txn->journal, shape->definition_length, error);
    if (!body)
        return 0;
    memcpy(body, shape->definition, shape->definition_length);
    fbc_record_end(&txn->journal, FBC_TABLE, shape->is_resolved ? 0 : FBC_TABLE_UNRESOLVED,
                   count + 1, shape->definition_length);
    struct fbc_table_use *use = &txn->tables[count];
    if (count < txn->tables_used)
        drop_question(use);
    else
        txn->tables_used = count + 1;
    *use = (struct fbc_table_use){shape->id, shape->is_resolved, NULL};
    if (!shape->is_resolved)
        use->question =
            fbc_question_ask(FBC_COMPLETE, txn->session->database->id, shape->generation,
                             shape->definition, shape->definition_length);
    txn->journal.at.tables = count + 1;
    return count + 1;
}

void fbc_txn_await_answers(struct fbc_transaction *txn) {
    size_t length;
    for (uint32_t i = 0; i < txn->tables_used; i++)
        if (txn->tables[i].question)
            fbc_question_await(txn->tables[i].question, &length);
}

struct fbc_appendix fbc_txn_catalogue(struct fbc_transaction *txn) {
    struct fbc_appendix catalogue = {0};
    size_t size = FBC_BLOCK_HEADER;
    txn->is_unresolved = 0;
    for (uint32_t i = 0; i < txn->journal.at.tables; i++) {
        struct fbc_table_use *use = &txn->tables[i];
        size_t length = 0;
        if (use->is_complete)
            continue;
        const char *complete = use->question ? fbc_question_await(use->question, &length) : NULL;
        size_t needed = size + FBC_RECORD_HEADER + length;
        char *block =
            complete && needed <= FBC_BLOCK_LIMIT ? realloc(catalogue.block, needed) : NULL;
        if (!block) {
            txn->is_unresolved = 1;
            continue;
        }
        char *record = block + size;
        memset(record, 0, FBC_RECORD_HEADER);
        record[0] = FBC_TABLE;
        fbc_put16(record + 2, (uint16_t)(i + 1));
        fbc_put32(record + 4, (uint32_t)length);
        memcpy(record + FBC_RECORD_HEADER, complete, length);
        size = needed;
        catalogue.block = block;
        catalogue.payload = size - FBC_BLOCK_HEADER;
        catalogue.records++;
    }
    return catalogue;
}

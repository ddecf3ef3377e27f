/* What records do not show of their tables: key, column order, NOT NULL, precision, defaults.
 *
 * It is read from the system tables by a thread of the bridge, on an attachment of ours, never
 * inside a callback of the engine. A transaction asks at the first use of a table and waits for
 * the answer in prepare. What was completed once is kept for the process, so that later
 * transactions write complete definitions at once.
 */
#ifndef FIREBIRD_CDC_CATALOGUE_H
#define FIREBIRD_CDC_CATALOGUE_H

#include "bridge_api.h"
#include "rows.h"

/* What a completed definition may add for each column: its place in the order, its element with the
 * bounds of 16 dimensions, and its default. A larger one is left out: no literal of use is. */
enum { FBC_MOST_DEFAULT = 1000, FBC_COMPLETED_BYTES = 2 + 12 + 16 * 8 + 2 + FBC_MOST_DEFAULT };

/* fbc_definition_complete completes DEFINITION, the body of a TABLE record as a shape has it, in
 * a buffer of SIZE bytes, which must have room for FBC_COMPLETED_BYTES a column; *LENGTH grows by
 * what is added, and becomes 0 if the table is gone. If only the defaults can't be read it has
 * none, and ERROR says why. */
int fbc_definition_complete(const struct fbc_source *source, char *definition, size_t *length,
                            size_t size, struct fbc_error *error);

/* fbc_catalogue_select asks a question whose answer has COLUMNS columns, VARCHARs all. ROWS, for
 * the caller to free, gets u16 length and bytes of each, 65535 for NULL, row by row. */
int fbc_catalogue_select(const struct fbc_source *source, const char *select, int columns,
                         char **rows, size_t *length, struct fbc_error *error);

/* fbc_catalogue_find returns the complete form of the definition SHOWN by records, as of
 * GENERATION of the system tables, for the caller to free; null if it is not known. */
char *fbc_catalogue_find(unsigned database, uint64_t generation, const char *shown,
                         size_t shown_length, size_t *length);

/* fbc_catalogue_store remembers it, and forgets those of other generations. */
void fbc_catalogue_store(unsigned database, uint64_t generation, const char *shown,
                         size_t shown_length, const char *complete, size_t length);

/* fbc_catalogue_version grows with every definition that is stored. */
uint64_t fbc_catalogue_version(void);

/* fbc_catalogue_init is called once, when the engine loads the plugin. */
void fbc_catalogue_init(void);

/* fbc_question_ask has the bridge find out the complete form of the definition SHOWN, or what
 * KIND says of it. Returns at once; the question belongs to the caller and to all who asked the
 * same before it was answered, and ends with fbc_question_drop. Null: too many are waiting. */
struct fbc_question *fbc_question_ask(enum fbc_question_kind kind, unsigned database,
                                      uint64_t generation, const char *shown, size_t shown_length);

/* fbc_question_await returns the complete form, valid until the question is dropped, or null:
 * there is none, or it took too long: two seconds since it was asked, or half a second while a
 * DDL commits. Unless it took too long, no attachment of ours is open for it any more. */
const char *fbc_question_await(struct fbc_question *question, size_t *length);
void fbc_question_drop(struct fbc_question *question);

/* fbc_question_ddl adds to the number of DDL transactions that the engine is committing. Their
 * locks may hold up the attachment that answers, until those who wait for it go on. */
void fbc_question_ddl(int transactions);

/* What the bridge calls: take_questions and answer_question of bridge_api.h. */
int fbc_question_take(struct fbc_question_view *to, int most, int timeout_ms);
void fbc_question_answer(uint64_t number, const char *complete, size_t length);

#endif

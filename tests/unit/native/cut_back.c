/* Writes a journal of DDL records with savepoints at every place where a cut can hurt: inside
 * the block being filled, right at its edge, and blocks before it. Usage: cut_back FILE
 *
 * The texts that remain are "kept 0", "kept 1", ... in order.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "journal.h"

static struct fbc_journal journal;
static struct fbc_error error;

static void add(const char *text, unsigned number, size_t padding) {
    char *body = fbc_record_begin(&journal, 64 + padding, &error);
    if (!body) {
        fprintf(stderr, "%s\n", error.text);
        exit(1);
    }
    fbc_put16(body, 4);
    size_t used = 2 + (size_t)snprintf(body + 2, 62, "%s %u", text, number);
    memset(body + used, ' ', padding);
    fbc_record_end(&journal, FBC_DDL, 0, 0, used + padding);
}

int main(int count, char **arguments) {
    static const struct fbc_journal_identity identity = {
        .uuid = {1}, .transaction = 1, .database = "/db"};
    int fd = count == 2 ? open(arguments[1], O_RDWR | O_CREAT | O_EXCL, 0600) : -1;
    if (fd < 0)
        return 2;
    fbc_journal_open(&journal, fd, "cut-back", &identity);
    if (!fbc_journal_begin(&journal, "/db", 3, "U", 1, &error))
        return 1;
    unsigned kept = 0;
    /* 0: nothing to take back; 9: many blocks of 128 KiB */
    for (unsigned gone = 0; gone < 10; gone++)
        for (unsigned nested = 0; nested < 2; nested++) {
            struct fbc_position outer = journal.at;
            for (unsigned i = 0; i < gone * gone; i++)
                add("gone", i, 10 * 1024);
            if (nested) {
                struct fbc_position inner = journal.at;
                for (unsigned i = 0; i < 20; i++)
                    add("gone too", i, 20 * 1024);
                if (!fbc_journal_cut(&journal, &inner, &error))
                    return 1;
                add("gone after all", 0, 0);
            }
            if (!fbc_journal_cut(&journal, &outer, &error))
                return 1;
            add("kept", kept++, 1024 * gone);
        }
    if (!fbc_journal_seal(&journal, 0, 0, NULL, &error) ||
        !fbc_journal_break_seal(&journal, 0, &error))
        return 1;
    add("kept", kept++, 0);
    if (!fbc_journal_seal(&journal, 0, 0, NULL, &error))
        return 1;
    fbc_journal_free(&journal);
    return 0;
}

/* Writes a journal of DDL records that is sealed, unsealed for more, and sealed again with another
 * floor, 7. Usage: seal_twice FILE CASE
 *
 * CASE is what happens in between, after the first seal with the floor 5:
 *   more      a record is added
 *   undone    records are added, some blocks of them written out, and all cut back
 *   earlier   the same, cut back to a place inside the block before the first seal
 *   flushed   without a first seal: all blocks are written out before the only one
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "journal.h"

static struct fbc_journal journal;
static struct fbc_error error;

static void check(int done) {
    if (!done) {
        fprintf(stderr, "%s\n", error.text);
        exit(1);
    }
}

static void add(size_t padding) {
    char *body = fbc_record_begin(&journal, 2 + padding, &error);
    check(body != NULL);
    fbc_put16(body, 4);
    memset(body + 2, 'x', padding);
    fbc_record_end(&journal, FBC_DDL, 0, 0, 2 + padding);
}

int main(int count, char **arguments) {
    enum { FIRST = 5, SECOND = 7, LARGE = 50 * 1024 };
    static const struct fbc_journal_identity identity = {
        .uuid = {1}, .transaction = 1, .database = "/db"};
    int fd = count == 3 ? open(arguments[1], O_RDWR | O_CREAT | O_EXCL, 0600) : -1;
    const char *what = arguments[count - 1];
    if (fd < 0)
        return 2;
    fbc_journal_open(&journal, fd, "seal-twice", &identity);
    check(fbc_journal_begin(&journal, "/db", 3, "U", 1, &error));
    add(10);
    struct fbc_position back = journal.at;
    add(20);
    if (strcmp(what, "flushed") == 0) {
        check(fbc_journal_flush(&journal, &error));
    } else {
        check(fbc_journal_seal(&journal, 0, FIRST + 1, NULL, &error));
        check(fbc_journal_break_seal(&journal, 0, &error));
        if (strcmp(what, "earlier") != 0)
            back = journal.at;
        for (int i = 0; i < 10; i++)
            add(LARGE);
        check(fbc_journal_cut(&journal, &back, &error));
        if (strcmp(what, "more") == 0)
            add(30);
    }
    check(fbc_journal_seal(&journal, 0, SECOND + 1, NULL, &error));
    fbc_journal_free(&journal);
    return 0;
}

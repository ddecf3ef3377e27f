/* The first words of a DDL statement: enough to tell that it may change a table.
 * journal/format/ddl_text.py tells exactly. */
#define _GNU_SOURCE
#include "ddl_words.h"

#include <string.h>

/* The word at *TEXT in capitals, up to 15 letters, behind blanks and comments; empty if there is
 * none. *TEXT moves behind it. */
static void next_word(const char **text, char word[16]) {
    const char *at = *text;
    unsigned length = 0;
    for (;;) {
        if (strncmp(at, "--", 2) == 0)
            at += strcspn(at, "\n");
        else if (strncmp(at, "/*", 2) == 0) {
            const char *end = strstr(at + 2, "*/");
            at = end ? end + 2 : at + strlen(at);
        } else if (*at && strchr(" \t\r\n\f\v", *at))
            at++;
        else
            break;
    }
    for (; (*at | 32) >= 'a' && (*at | 32) <= 'z'; at++)
        if (length < 15)
            word[length++] = (char)(*at & ~32);
    word[length] = 0;
    *text = at;
}

enum fbc_table_ddl fbc_table_ddl_of(const char *sql) {
    enum { MOST_WORDS = 4 }; /* CREATE UNIQUE DESCENDING INDEX */
    char word[16];
    int alters = 0;
    for (int i = 0; i < MOST_WORDS; i++) {
        next_word(&sql, word);
        alters |= i == 0 && strcmp(word, "ALTER") == 0;
        if (strcmp(word, "INDEX") == 0)
            return FBC_INDEX_DDL;
        if (strcmp(word, "TABLE") == 0 || (alters && strcmp(word, "DOMAIN") == 0))
            return FBC_TABLE_DDL;
    }
    return FBC_NO_TABLE_DDL;
}

/* Counts failures in a state folder. Usage: count_failures STATE CONFIG PATH refused|lost TIMES
 *
 * Ends with 1 and the reason if one could not be counted. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "counters.h"

int main(int count, char **arguments) {
    struct fbc_error error;
    if (count != 6)
        return 2;
    enum fbc_counter kind = strcmp(arguments[4], "lost") == 0 ? FBC_GAPS : FBC_REFUSED;
    for (int i = 0; i < atoi(arguments[5]); i++)
        if (!fbc_count_failure_in(arguments[1], arguments[2], arguments[3], kind, &error)) {
            puts(error.text);
            return 1;
        }
    return 0;
}

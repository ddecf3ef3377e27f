/* Counts transactions in the page of a journal folder. Usage: count_in_page FOLDER PATH TIMES
 *
 * Each time as a process does that has not met the database before. */
#include <fcntl.h>
#include <stdlib.h>

#include "counters.h"

int main(int count, char **arguments) {
    int folder = count == 4 ? open(arguments[1], O_RDONLY | O_DIRECTORY) : -1;
    if (folder < 0)
        return 2;
    fbc_counters_use(folder);
    for (int i = 0; i < atoi(arguments[3]); i++)
        fbc_count(fbc_counters_of(arguments[2], NULL), FBC_CAPTURED, 1);
    return 0;
}

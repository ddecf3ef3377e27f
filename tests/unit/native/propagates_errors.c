/* Prints what native/policy.c makes of a replication.conf (1: errors are heeded, 0: they are not,
 * -1: unknown), or of a line of the connector's file.
 * Usage: propagates_errors FILE ROOT DATABASE | propagates_errors FILE KEY
 */
#include <stdio.h>

#include "policy.h"

int main(int count, char **arguments) {
    char value[64];
    if (count == 4)
        printf("%d\n", (int)fbc_policy_errors(arguments[1], arguments[2], arguments[3]) - 1);
    else if (count == 3 && fbc_policy_option(arguments[1], arguments[2], value, sizeof value))
        printf("[%s]\n", value);
    return 0;
}

/* Prints what native/policy.c makes of a replication.conf, or of a line of the connector's file.
 * Usage: propagates_errors FILE ROOT DATABASE | propagates_errors FILE KEY
 */
#include <stdio.h>

#include "policy.h"

int main(int count, char **arguments) {
    char value[64];
    if (count == 4)
        printf("%d\n", fbc_policy_propagates_errors(arguments[1], arguments[2], arguments[3]));
    else if (count == 3 && fbc_policy_option(arguments[1], arguments[2], value, sizeof value))
        printf("[%s]\n", value);
    return 0;
}

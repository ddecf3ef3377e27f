/* Has native/policy.c tell of something else so many times. Usage: tell COUNT */
#include <stdio.h>
#include <stdlib.h>

#include "policy.h"

int main(int count, char **arguments) {
    char text[1024];
    if (count != 2)
        return 2;
    for (int i = 0; i < atoi(arguments[1]); i++) {
        snprintf(text, sizeof text, "transaction %d can't be recorded: %900d", i, 0);
        fbc_policy_tell(text);
    }
    return 0;
}

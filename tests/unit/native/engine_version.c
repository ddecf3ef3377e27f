/* Prints what native/engine_version.c makes of a version. Usage: engine_version TEXT */
#include <stdio.h>
#include <string.h>

#include "engine_version.h"

int main(int count, char **arguments) {
    if (count != 2)
        return 2;
    struct fbc_engine_version version =
        fbc_engine_version_of((const unsigned char *)arguments[1], strlen(arguments[1]));
    const char *refusal = fbc_engine_refusal(&version);
    printf("%u.%u.%u %s %s\n", version.major, version.minor, version.patch,
           fbc_engine_announces_root(&version) ? "root" : "rootless", refusal ? refusal : "served");
    return 0;
}

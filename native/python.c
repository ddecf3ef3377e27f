/* Finding and starting the Python of this process, by dlopen alone: the plugin itself needs
 * nothing but libc, so that the engine can always load it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host.h"
#include "own_file.h"

enum { OLDEST_MINOR = 11, NEWEST_MINOR = 13 };

struct python {
    const char *(*get_version)(void);
    int (*is_initialized)(void);
    void (*initialize)(int signals);
    int (*gil_ensure)(void);
    void (*gil_release)(int);
    void *(*save_thread)(void);
    int (*run)(const char *);
    void *(*decode_locale)(const char *, size_t *);
    void (*set_home)(const void *);
};

static void *open_embedding(int minor, char *tried, size_t size) {
    const char *folders[] = {"firebird_cdc/", ""};
    for (unsigned i = 0; i < 2; i++) {
        char part[128], path[1024];
        snprintf(part, sizeof part, "%s_embedding.cpython-3%d-x86_64-linux-gnu.so", folders[i],
                 minor);
        fbc_beside_own_file(part, path, sizeof path);
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (library)
            return library;
        size_t used = strlen(tried);
        if (i == 0)
            snprintf(tried + used, size - used, "%s%s", used ? "; " : "", dlerror());
    }
    return NULL;
}

static int embedding_exists(int minor) {
    char part[128], path[1024];
    snprintf(part, sizeof part, "firebird_cdc/_embedding.cpython-3%d-x86_64-linux-gnu.so", minor);
    fbc_beside_own_file(part, path, sizeof path);
    FILE *file = fopen(path, "re");
    if (!file) {
        fbc_beside_own_file(part + strlen("firebird_cdc/"), path, sizeof path);
        file = fopen(path, "re");
    }
    if (file)
        fclose(file);
    return file != NULL;
}

/* Make a Python's symbols global: a server loads plugins with local ones, and compiled Python
 * modules look for theirs in the global scope. */
static void *open_libpython(const struct fbc_settings *settings, struct fbc_error *error) {
    void *process = dlopen(NULL, RTLD_NOW);
    if (process && dlsym(process, "Py_GetVersion"))
        return process; /* the host is a Python process */
    if (settings->python[0]) {
        void *library = dlopen(settings->python, RTLD_NOW | RTLD_GLOBAL);
        if (!library)
            fbc_error_set(error, 0, "cannot open the Python library of plugins.conf: %s",
                          dlerror());
        return library;
    }
    for (int minor = NEWEST_MINOR; minor >= OLDEST_MINOR; minor--) {
        char name[64];
        snprintf(name, sizeof name, "libpython3.%d.so.1.0", minor);
        void *library = embedding_exists(minor) ? dlopen(name, RTLD_NOW | RTLD_GLOBAL) : NULL;
        if (library)
            return library;
    }
    fbc_error_set(error, 0,
                  "no Python library (libpython3.%d to 3.%d) that the plugin was built for can be "
                  "opened; install it, or set Python = <path of libpython> in plugins.conf",
                  OLDEST_MINOR, NEWEST_MINOR);
    return NULL;
}

static int resolve(void *library, struct python *python) {
    *(void **)&python->get_version = dlsym(library, "Py_GetVersion");
    *(void **)&python->is_initialized = dlsym(library, "Py_IsInitialized");
    *(void **)&python->initialize = dlsym(library, "Py_InitializeEx");
    *(void **)&python->gil_ensure = dlsym(library, "PyGILState_Ensure");
    *(void **)&python->gil_release = dlsym(library, "PyGILState_Release");
    *(void **)&python->save_thread = dlsym(library, "PyEval_SaveThread");
    *(void **)&python->run = dlsym(library, "PyRun_SimpleString");
    *(void **)&python->decode_locale = dlsym(library, "Py_DecodeLocale");
    *(void **)&python->set_home = dlsym(library, "Py_SetPythonHome");
    return python->get_version && python->is_initialized && python->initialize &&
           python->gil_ensure && python->gil_release && python->save_thread && python->run;
}

static char *to_hex(const char *text) {
    char *hex = malloc(2 * strlen(text) + 1);
    if (!hex)
        return NULL;
    char *to = hex;
    for (; *text; text++)
        to += sprintf(to, "%02x", (unsigned char)*text);
    *to = 0;
    return hex;
}

/* A program that puts PythonDirs in front of the search path, honouring .pth files in them, and
 * loads the bridge, so that what is missing shows before the embedding's own start, which can't be
 * tried twice. Why it failed goes to descriptor REPORT. It leaves no name behind: in a host that
 * is a Python program __main__ is the host's. Program and paths travel as hexadecimal. */
static char *start_program(const char *dirs, int report) {
    static const char body[] =
        "import importlib, os, site, sys\n"
        "try:\n"
        "    old = list(sys.path)\n"
        "    for folder in bytes.fromhex(dirs).decode().split(os.pathsep):\n"
        "        if folder: site.addsitedir(folder)\n"
        "    sys.path[:] = [p for p in sys.path if p not in old] + old\n"
        "    sys.path_importer_cache.clear()\n"
        "    importlib.invalidate_caches()\n"
        "    import _cffi_backend, firebird_cdc\n"
        "    from firebird_cdc.native import _shared_page\n"
        "    if getattr(_shared_page, 'BRIDGE_ABI', 0) != abi:\n"
        "        raise ImportError(f'firebird-cdc {firebird_cdc.__version__} in '\n"
        "            f'{os.path.dirname(firebird_cdc.__file__)} is another version than the '\n"
        "            'plugin: install one of them anew, and restart the server')\n"
        "    import firebird_cdc.bridge.embedded\n"
        "except BaseException as error:\n"
        "    os.write(report, f'{type(error).__name__}: {error}'.encode()[:400])\n";
    static const char frame[] =
        "exec(bytes.fromhex('%s').decode(), {'dirs': '%s', 'report': %d, 'abi': %u})\n";
    char *program = malloc(sizeof frame + 32 + 2 * sizeof body + 2 * strlen(dirs));
    char *body_hex = to_hex(body), *dirs_hex = to_hex(dirs);
    if (program && body_hex && dirs_hex)
        sprintf(program, frame, body_hex, dirs_hex, report, FBC_BRIDGE_ABI);
    else {
        free(program);
        program = NULL;
    }
    free(body_hex);
    free(dirs_hex);
    return program;
}

/* A Python without its own modules ends the process when it is started: look for them first, where
 * somebody says that they are. */
static int home_is_whole(const struct fbc_settings *settings, int minor, struct fbc_error *error) {
    const char *home = settings->python_home, *named = "PythonHome of plugins.conf";
    char path[PATH_MAX + 64];
    if (!home[0]) {
        home = getenv("PYTHONHOME");
        named = "PYTHONHOME in the server's environment";
    }
    if (!home || !home[0])
        return FBC_OK;
    /* behind a colon stands the home of compiled modules, which Python can start without */
    snprintf(path, sizeof path, "%.*s/lib/python3.%d/encodings/__init__.py",
             (int)strcspn(home, ":"), home, minor);
    if (access(path, R_OK) == 0)
        return FBC_OK;
    fbc_error_set(error, errno, "%s is not the home of a Python 3.%d (cannot read %s)", named,
                  minor, path);
    return FBC_FAILED;
}

static int start_python(const struct python *python, const struct fbc_settings *settings,
                        struct fbc_error *error) {
    int report[2];
    char reason[512] = "";
    if (pipe2(report, O_CLOEXEC | O_NONBLOCK) != 0) {
        fbc_error_set(error, errno, "no pipe to start Python");
        return FBC_FAILED;
    }
    char *program = start_program(settings->python_dirs, report[1]);
    int result = -1;
    if (!program)
        snprintf(reason, sizeof reason, "no memory");
    else if (python->is_initialized()) {
        int state = python->gil_ensure();
        result = python->run(program);
        python->gil_release(state);
    } else {
        if (settings->python_home[0] && python->set_home && python->decode_locale)
            python->set_home(python->decode_locale(settings->python_home, NULL));
        python->initialize(0); /* 0: the server's signal handlers stay as they are */
        result = python->run(program);
        python->save_thread();
    }
    ssize_t length = read(report[0], reason, sizeof reason - 1);
    if (length > 0)
        reason[length] = 0;
    close(report[0]);
    close(report[1]);
    free(program);
    if (result == 0 && length <= 0)
        return FBC_OK;
    fbc_error_set(
        error, 0,
        "the bridge can't be loaded into Python (%s); check PythonDirs in plugins.conf, or "
        "run: firebird-cdc check",
        reason[0] ? reason : "its error is on the server's standard error");
    return FBC_FAILED;
}

/* Tell whether EMBEDDING was built with the plugin's bridge_api.h. */
static int is_of_plugin(void *embedding, int minor, struct fbc_error *error) {
    const uint32_t *abi = dlsym(embedding, "fbc_bridge_abi");
    if (abi && *abi == FBC_BRIDGE_ABI)
        return FBC_OK;
    fbc_error_set(error, 0,
                  "the bridge for Python 3.%d beside the plugin is of another version than the "
                  "plugin; run: firebird-cdc install, and restart the server",
                  minor);
    return FBC_FAILED;
}

int fbc_python_open(const struct fbc_settings *given, fbc_bridge_start_function *start,
                    struct fbc_error *error) {
    static struct fbc_settings settings; /* whoever calls holds a lock */
    struct python python;
    char tried[400] = "";
    settings = *given;
    const char *version = fbc_own_version();
    if (*version) { /* what plugins.conf says may be of another one by now */
        snprintf(settings.python, sizeof settings.python, "%.900s/lib/libpython.so", version);
        snprintf(settings.python_home, sizeof settings.python_home, "%.900s/python", version);
        snprintf(settings.python_dirs, sizeof settings.python_dirs, "%.900s/lib/packages", version);
    }
    void *library = open_libpython(&settings, error);
    if (!library)
        return FBC_FAILED;
    int minor = 0;
    if (!resolve(library, &python) || sscanf(python.get_version(), "3.%d", &minor) != 1) {
        fbc_error_set(error, 0, "the Python library lacks functions of Python 3.11 or later");
        return FBC_FAILED;
    }
    if ((!python.is_initialized() && !home_is_whole(&settings, minor, error)) ||
        !start_python(&python, &settings, error))
        return FBC_FAILED;
    void *embedding = open_embedding(minor, tried, sizeof tried);
    if (!embedding) {
        fbc_error_set(error, 0,
                      "the bridge for Python 3.%d can't be opened: %s; run: firebird-cdc install",
                      minor, tried);
        return FBC_FAILED;
    }
    if (!is_of_plugin(embedding, minor, error))
        return FBC_FAILED;
    *(void **)start = dlsym(embedding, "fbc_bridge_start");
    if (!*start)
        fbc_error_set(error, 0, "the bridge for Python 3.%d lacks its entry point", minor);
    return *start ? FBC_OK : FBC_FAILED;
}
